"""Every op in plain torch: the definition of correct, and what runs where a chip offers nothing better.

Letters: T tokens, B rows, E hidden width, O output width, F feed-forward width, V vocabulary, H query heads,
K key/value heads, N heads of any kind, D head width, S slots of the KV pool.
"""

import torch
import torch.nn.functional as F

from sglk.backends.kv_values import KVScales, read_both, write_kv
from sglk.backends.ops import define_op
from sglk.backends.rows import PagedRows


@define_op
def embedding(ids_T: torch.Tensor, weight_VE: torch.Tensor) -> torch.Tensor:
    """Look the rows of `ids_T` up: x_TE."""
    return weight_VE[ids_T]


@define_op
def linear(x_TE: torch.Tensor, weight_OE: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return y_TO = x W^T + b."""
    return F.linear(x_TE, weight_OE, bias_O)


@define_op
def rms_norm(x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale each row to unit root mean square, computed in fp32 (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    x = x_TE.float()
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return weight_E * scaled.to(x_TE.dtype)


@define_op
def add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of x + residual, and x + residual itself; may overwrite both arguments."""
    total = x_TE + residual_TE
    return rms_norm.reference(total, weight_E, eps), total


@define_op
def rope(x_TND: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (d, d + D/2) of every head by the angle of the token's position.

    Rotary embedding (Su et al. 2021, arXiv:2104.09864) in the half-split order of GPT-NeoX; `cos_TD` and `sin_TD`
    carry each angle twice.
    """
    left, right = x_TND.chunk(2, dim=-1)
    rotated = torch.cat((-right, left), dim=-1)
    return x_TND * cos_TD.unsqueeze(1) + rotated * sin_TD.unsqueeze(1)


@define_op
def silu_and_mul(x_T2F: torch.Tensor) -> torch.Tensor:
    """Return silu(first half) * second half of each row: y_TF."""
    gate, up = x_T2F.chunk(2, dim=-1)
    return F.silu(gate) * up


@define_op
def store_kv(
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    k_pool_SKD: torch.Tensor,
    v_pool_SKD: torch.Tensor,
    slots_T: torch.Tensor,
    scales: KVScales | None = None,
) -> None:
    """Write keys and values into their slots of the pool, in the pool's dtype; an int8 pool comes with `scales`."""
    write_kv(k_TKD, k_pool_SKD, slots_T, scales.keys_SK if scales else None)
    write_kv(v_TKD, v_pool_SKD, slots_T, scales.values_SK if scales else None)


@define_op
def attention_prefill(
    q_THD: torch.Tensor,
    k_pool_SKD: torch.Tensor,
    v_pool_SKD: torch.Tensor,
    rows: PagedRows,
    scale: float,
    scales: KVScales | None = None,
) -> torch.Tensor:
    """Attend causally, each row's queries to its tokens in the pool: out_THD.

    A query sees every token of its row up to itself, or the last `rows.window` of them. Scores and softmax in fp32;
    H / K neighbouring query heads share a key/value head (Ainslie et al. 2023, arXiv:2305.13245). Slots that no row
    names may hold anything, NaN included; a value that is not finite makes NaN of what sees it.
    """
    group = q_THD.shape[1] // k_pool_SKD.shape[1]
    out_THD = torch.empty_like(q_THD)
    for row in range(len(rows)):
        queries = slice(rows.query_starts[row], rows.query_starts[row + 1])
        slots_L = rows.row_slots[row]
        k_LKD, v_LKD = read_both(k_pool_SKD, v_pool_SKD, slots_L, scales, torch.float32)
        seen_QL, finite_LKD = rows.causal_masks[row], v_LKD.isfinite()
        # A query that does not see a NaN would get one all the same: 0 times NaN.
        v_LKD = v_LKD.where(finite_LKD, 0.0)
        k_HDL = k_LKD.repeat_interleave(group, dim=1).permute(1, 2, 0)
        v_HLD = v_LKD.repeat_interleave(group, dim=1).transpose(0, 1)
        scores_HQL = q_THD[queries].float().transpose(0, 1) @ k_HDL * scale
        scores_HQL = scores_HQL.masked_fill(~seen_QL, -torch.inf)
        out_HQD = scores_HQL.softmax(-1) @ v_HLD
        spoilt_QKD = torch.einsum("ql,lkd->qkd", seen_QL.float(), (~finite_LKD).float()) > 0
        out_THD[queries] = out_HQD.transpose(0, 1).masked_fill(spoilt_QKD.repeat_interleave(group, dim=1), torch.nan)
    return out_THD


@define_op
def attention_decode(
    q_BHD: torch.Tensor,
    k_pool_SKD: torch.Tensor,
    v_pool_SKD: torch.Tensor,
    rows: PagedRows,
    scale: float,
    scales: KVScales | None = None,
) -> torch.Tensor:
    """Attend with one query a row, the last of its tokens, to those it sees: out_BHD."""
    return attention_prefill.reference(q_BHD, k_pool_SKD, v_pool_SKD, rows, scale, scales)
