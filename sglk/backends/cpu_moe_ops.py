"""Expert ops of the cpu backend. Letters as in `moe_ops.py`."""

import torch
import torch.nn.functional as F

from sglk.backends import moe_ops
from sglk.backends.ops import OpRegistry


def register_cpu_moe_ops(ops: OpRegistry, provider: str) -> None:
    """Offer the ops of models with experts under the name `provider`."""
    ops.register(moe_ops.route, provider, moe_ops.route.reference)
    ops.register(moe_ops.route_grouped, provider, moe_ops.route_grouped.reference)
    ops.register(moe_ops.run_experts, provider, run_experts)
    ops.register(moe_ops.add_gated, provider, add_gated)


def run_experts(
    x_TE: torch.Tensor,
    gate_up_X2FE: torch.Tensor,
    down_XEF: torch.Tensor,
    weights_TC: torch.Tensor,
    ids_TC: torch.Tensor,
) -> torch.Tensor:
    """Multiply in fp32 per expert that some token chose, straight into place; do all else once for all visits."""
    ids_R, visits_R = ids_TC.flatten().sort(stable=True)
    tokens_R = visits_R // ids_TC.shape[1]
    experts, counts = torch.unique_consecutive(ids_R, return_counts=True)
    spans = list(zip(experts.tolist(), counts.tolist(), strict=True))
    x_RE = x_TE.index_select(0, tokens_R).float()
    gate_RF, up_RF = _multiply_spans(x_RE, gate_up_X2FE, spans).chunk(2, dim=-1)
    y_RE = _multiply_spans(F.silu(gate_RF).mul_(up_RF), down_XEF, spans)
    y_RE = y_RE * weights_TC.flatten().index_select(0, visits_R).unsqueeze(1)
    out_TE = torch.zeros_like(x_TE, dtype=torch.float32)
    return out_TE.index_add_(0, tokens_R, y_RE).to(x_TE.dtype)


def add_gated(x_TE: torch.Tensor, gate_T1: torch.Tensor, y_TE: torch.Tensor) -> torch.Tensor:
    """Fuse the multiplication and the sum."""
    return x_TE.float().addcmul(gate_T1.float().sigmoid(), y_TE.float()).to(x_TE.dtype)


def _multiply_spans(x_RE: torch.Tensor, weights_XOE: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
    """Multiply neighbouring rows by the weight of their expert; a span is an expert and its number of rows."""
    y_RO = x_RE.new_empty(len(x_RE), weights_XOE.shape[1])
    start = 0
    for expert, count in spans:
        torch.mm(x_RE[start : start + count], weights_XOE[expert].float().t(), out=y_RO[start : start + count])
        start += count
    return y_RO
