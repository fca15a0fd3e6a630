"""Expert ops of the cuda backend. Letters as in `moe_ops.py`."""

import torch
import torch.nn.functional as F

from sglk.backends import cpu_moe_ops, cpu_ops, moe_ops
from sglk.backends.constraints import multiple_of, one_of
from sglk.backends.ops import OpRegistry

ALIGNED = 8
"""Values of bf16 in the 16 bytes that rows of a grouped product start at."""


def register_cuda_moe_ops(ops: OpRegistry, provider: str, compute_capability: tuple[int, int]) -> None:
    """Offer the ops of models with experts; grouped products come with torch 2.10 and compute capability 8.0."""
    ops.register(moe_ops.route, provider, moe_ops.route.reference)
    ops.register(moe_ops.route_grouped, provider, moe_ops.route_grouped.reference)
    ops.register(moe_ops.add_gated, provider, cpu_moe_ops.add_gated)
    ops.register(moe_ops.run_experts, provider, cpu_moe_ops.run_experts)
    if hasattr(F, "grouped_mm") and compute_capability >= (8, 0):
        aligned = (multiple_of("hidden", ALIGNED), multiple_of("width", ALIGNED))
        ops.register(moe_ops.run_experts, provider, run_experts, one_of("dtype", "bf16"), *aligned)


def run_experts(
    x_TE: torch.Tensor,
    gate_up_X2FE: torch.Tensor,
    down_XEF: torch.Tensor,
    weights_TC: torch.Tensor,
    ids_TC: torch.Tensor,
) -> torch.Tensor:
    """Multiply the visits of all experts in two grouped products; how many each has stays on the device."""
    ids_R, visits_R = ids_TC.flatten().sort(stable=True)
    experts_X = torch.arange(len(gate_up_X2FE), device=ids_R.device)
    ends_X = torch.searchsorted(ids_R, experts_X, right=True).to(torch.int32)
    x_RE = x_TE.index_select(0, visits_R // ids_TC.shape[1])
    hidden_RF = cpu_ops.silu_and_mul(F.grouped_mm(x_RE, gate_up_X2FE.transpose(1, 2), offs=ends_X))
    sorted_RE = F.grouped_mm(hidden_RF, down_XEF.transpose(1, 2), offs=ends_X)
    # Back in the order of tokens, and summed in the order of choices: atomic sums would differ from run to run.
    y_TCE = torch.empty_like(sorted_RE).index_copy_(0, visits_R, sorted_RE).view(*ids_TC.shape, -1)
    return (y_TCE.float() * weights_TC.unsqueeze(-1)).sum(1).to(x_TE.dtype)
