"""Ops of the cuda backend: torch's own kernels. Letters as in `reference.py`; also Q queries and L tokens of a row.

Nothing here needs a GPU to be called, and what decodes reads nothing back to the host, so that graphs can hold it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from sglk.backends import cpu_ops, reference, sampling_ops
from sglk.backends.cuda_moe_ops import register_cuda_moe_ops
from sglk.backends.cuda_quantised import register_cuda_quantised_ops
from sglk.backends.kv_values import KVScales, read_both
from sglk.backends.ops import OpRegistry
from sglk.backends.rows import PagedRows

PROVIDER = "cuda"


def register_cuda_ops(ops: OpRegistry, compute_capability: tuple[int, int]) -> None:
    """Offer every op: torch itself is the chip's library here, so a reference that cannot be beaten is native too."""
    ops.register(reference.embedding, PROVIDER, cpu_ops.embedding)
    ops.register(reference.linear, PROVIDER, F.linear)
    ops.register(reference.rms_norm, PROVIDER, rms_norm)
    ops.register(reference.add_rms_norm, PROVIDER, add_rms_norm)
    ops.register(reference.rope, PROVIDER, cpu_ops.rope)
    ops.register(reference.silu_and_mul, PROVIDER, cpu_ops.silu_and_mul)
    ops.register(reference.store_kv, PROVIDER, reference.store_kv.reference)
    ops.register(reference.attention_prefill, PROVIDER, attention_prefill)
    ops.register(reference.attention_decode, PROVIDER, cpu_ops.attention_decode)
    # Sampling on the cpu asks its rows what they want; here each question would wait for the device.
    ops.register(sampling_ops.greedy, PROVIDER, sampling_ops.greedy.reference)
    ops.register(sampling_ops.sample, PROVIDER, sampling_ops.sample.reference)
    ops.register(sampling_ops.adjust_logits, PROVIDER, sampling_ops.adjust_logits.reference)
    ops.register(sampling_ops.mask_logits, PROVIDER, sampling_ops.mask_logits.reference)
    ops.register(sampling_ops.token_logprobs, PROVIDER, sampling_ops.token_logprobs.reference)
    register_cuda_moe_ops(ops, PROVIDER, compute_capability)
    register_cuda_quantised_ops(ops, PROVIDER, compute_capability)


def rms_norm(x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise in one kernel, which rounds once where the reference rounds 16-bit values twice."""
    return F.rms_norm(x_TE, weight_E.shape, weight_E, eps)


def add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add in place, then normalise."""
    total_TE = residual_TE.add_(x_TE)
    return rms_norm(total_TE, weight_E, eps), total_TE


def attention_prefill(
    q_THD: torch.Tensor,
    k_pool_SKD: torch.Tensor,
    v_pool_SKD: torch.Tensor,
    rows: PagedRows,
    scale: float,
    scales: KVScales | None = None,
) -> torch.Tensor:
    """Run the fused kernel row by row; only a sliding window needs a mask of its own."""
    out_THD = torch.empty_like(q_THD)
    for row, slots_L in enumerate(rows.row_slots):
        start, end = rows.query_starts[row], rows.query_starts[row + 1]
        k_LKD, v_LKD = read_both(k_pool_SKD, v_pool_SKD, slots_L, scales, q_THD.dtype)
        attended_HQD = F.scaled_dot_product_attention(
            q_THD[start:end].transpose(0, 1).unsqueeze(0),
            k_LKD.transpose(0, 1).unsqueeze(0),
            v_LKD.transpose(0, 1).unsqueeze(0),
            **causality(rows, row, end - start),
            scale=scale,
            enable_gqa=True,
        )[0]
        out_THD[start:end] = attended_HQD.transpose(0, 1)
    return out_THD


def causality(rows: PagedRows, row: int, queries: int) -> dict[str, Any]:
    """Return how torch is told what the queries of a row see, in the cheapest words."""
    length = int(rows.kv_lens_B[row])
    if rows.window is not None and rows.window < length:
        return {"attn_mask": rows.causal_masks[row]}
    if queries == length:
        return {"is_causal": True}
    return {"attn_mask": causal_lower_right(queries, length)}
