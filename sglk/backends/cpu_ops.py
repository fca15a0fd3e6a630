"""Ops of the cpu backend: what torch offers that is faster than the reference. Letters as in `reference.py`.

Also Q queries of one row, L tokens of a row, G = H / K query heads per key/value head. They run where the own kernels
cannot be built. 16-bit tensors are computed in fp32 and rounded once: processors are slower at 16 bits, and torch then
rounds in ways that depend on the batch. A row's last bits may still depend on what is beside it, for so do torch's
products in fp32.
"""

import torch
import torch.nn.functional as F

from sglk.backends import reference
from sglk.backends.cpu_moe_ops import register_cpu_moe_ops
from sglk.backends.cpu_sampling_ops import register_cpu_sampling_ops
from sglk.backends.kv_values import KVScales, read_both
from sglk.backends.ops import OpRegistry
from sglk.backends.quantised_linear import with_bias
from sglk.backends.rows import PagedRows

PROVIDER = "cpu"

BLOCK = 2**18
"""Weights that are widened at a time: 1 MiB of fp32, which a core's cache holds."""


def register_cpu_ops(ops: OpRegistry) -> None:
    """Offer every op: torch itself is the chip's library here, so a reference that cannot be beaten is native too."""
    ops.register(reference.embedding, PROVIDER, embedding)
    ops.register(reference.linear, PROVIDER, linear)
    ops.register(reference.rms_norm, PROVIDER, rms_norm)
    ops.register(reference.add_rms_norm, PROVIDER, add_rms_norm)
    ops.register(reference.rope, PROVIDER, rope)
    ops.register(reference.silu_and_mul, PROVIDER, silu_and_mul)
    ops.register(reference.store_kv, PROVIDER, reference.store_kv.reference)
    ops.register(reference.attention_prefill, PROVIDER, attention_prefill)
    ops.register(reference.attention_decode, PROVIDER, attention_decode)
    register_cpu_moe_ops(ops, PROVIDER)
    register_cpu_sampling_ops(ops, PROVIDER)


def embedding(ids_T: torch.Tensor, weight_VE: torch.Tensor) -> torch.Tensor:
    """Gather rows."""
    return weight_VE.index_select(0, ids_T)


def linear(x_TE: torch.Tensor, weight_OE: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Multiply in fp32; a weight of 16 bits is widened block by block of outputs, which then never leave the cache."""
    if weight_OE.dtype is torch.float32:
        return F.linear(x_TE, weight_OE, bias_O)
    x_TE, dtype = x_TE.float(), x_TE.dtype
    y_TO = x_TE.new_empty(len(x_TE), len(weight_OE))
    step = max(BLOCK // weight_OE.shape[1], 16)
    for start in range(0, len(weight_OE), step):
        block = slice(start, start + step)
        y_TO[:, block] = F.linear(x_TE, weight_OE[block].float())
    return with_bias(y_TO, bias_O, dtype)


def rms_norm(x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise with torch's own op in fp32; 16-bit input takes the reference's road for the same rounding."""
    if x_TE.dtype is not torch.float32:
        return reference.rms_norm.reference(x_TE, weight_E, eps)
    return F.rms_norm(x_TE, weight_E.shape, weight_E, eps)


def add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add in place, then normalise."""
    total = residual_TE.add_(x_TE)
    return rms_norm(total, weight_E, eps), total


def rope(x_TND: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> torch.Tensor:
    """Rotate with one multiplication and two fused multiply-adds."""
    half, dtype = x_TND.shape[2] // 2, x_TND.dtype
    x_TND = x_TND.float()
    out_TND = x_TND * cos_TD.unsqueeze(1)
    sin_T1D = sin_TD.unsqueeze(1)
    out_TND[:, :, :half].addcmul_(x_TND[:, :, half:], sin_T1D[:, :, :half], value=-1)
    out_TND[:, :, half:].addcmul_(x_TND[:, :, :half], sin_T1D[:, :, half:])
    return out_TND.to(dtype)


def silu_and_mul(x_T2F: torch.Tensor) -> torch.Tensor:
    """Multiply into the activation."""
    gate, up = x_T2F.float().chunk(2, dim=-1)
    return F.silu(gate).mul_(up).to(x_T2F.dtype)


def attention_prefill(
    q_THD: torch.Tensor,
    k_pool_SKD: torch.Tensor,
    v_pool_SKD: torch.Tensor,
    rows: PagedRows,
    scale: float,
    scales: KVScales | None = None,
) -> torch.Tensor:
    """Run the fused kernel row by row, without a mask where the row has no prefix and fits the window."""
    out_THD = torch.empty_like(q_THD)
    for row, slots_L in enumerate(rows.row_slots):
        start, end = rows.query_starts[row], rows.query_starts[row + 1]
        whole = end - start == len(slots_L) <= (rows.window or len(slots_L))
        k_LKD, v_LKD = read_both(k_pool_SKD, v_pool_SKD, slots_L, scales, torch.float32)
        attended_HQD = F.scaled_dot_product_attention(
            q_THD[start:end].float().transpose(0, 1).unsqueeze(0),
            k_LKD.transpose(0, 1).unsqueeze(0),
            v_LKD.transpose(0, 1).unsqueeze(0),
            attn_mask=None if whole else rows.causal_masks[row],
            is_causal=whole,
            scale=scale,
            enable_gqa=True,
        )[0]
        out_THD[start:end] = attended_HQD.transpose(0, 1)
    return out_THD


def attention_decode(
    q_BHD: torch.Tensor,
    k_pool_SKD: torch.Tensor,
    v_pool_SKD: torch.Tensor,
    rows: PagedRows,
    scale: float,
    scales: KVScales | None = None,
) -> torch.Tensor:
    """Gather all rows, padded to the longest, and run the fused kernel once.

    The query heads that share a key/value head pose as its queries, so that keys are read once per group.
    """
    batch, heads, width = q_BHD.shape
    kv_heads = k_pool_SKD.shape[1]
    k_NKD, v_NKD = read_both(k_pool_SKD, v_pool_SKD, rows.slots_device_BL.view(-1), scales, torch.float32)
    out_BKGD = F.scaled_dot_product_attention(
        q_BHD.float().reshape(batch, kv_heads, heads // kv_heads, width),
        k_NKD.view(batch, -1, kv_heads, width).transpose(1, 2),
        v_NKD.view(batch, -1, kv_heads, width).transpose(1, 2),
        attn_mask=rows.padding_bias_BL[:, None, None],
        scale=scale,
    )
    return out_BKGD.reshape(batch, heads, width).to(q_BHD.dtype)
