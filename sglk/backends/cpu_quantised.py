"""Quantised linear products of the cpu backend. Letters as in `quantised_linear.py`."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from sglk.backends import quantised_linear as reference
from sglk.backends.constraints import one_of
from sglk.backends.cpu_ops import BLOCK
from sglk.backends.ops import OpRegistry
from sglk.backends.quantise import round_int8
from sglk.backends.quantised import QuantisedMatrix, dequantise
from sglk.backends.quantised_moe import run_quantised_experts, weighted_experts

PROVIDER = "cpu"


def register_cpu_quantised_ops(ops: OpRegistry) -> None:
    """Offer every scheme."""
    ops.register(reference.linear_w8a8, PROVIDER, linear_w8a8_by_blocks)
    ops.register(run_quantised_experts, PROVIDER, run_quantised_experts.reference)
    ops.register(run_quantised_experts, PROVIDER, run_experts_by_blocks, one_of("scheme", "w8a16", "w4a16", "fp8"))
    if _int_mm_is_exact():
        ops.register(reference.linear_w8a8, PROVIDER, linear_w8a8, one_of("group_size", -1))
        whole = (one_of("scheme", "w8a8"), one_of("group_size", -1))
        ops.register(run_quantised_experts, PROVIDER, run_experts_w8a8, *whole)
    for op in (reference.linear_w8a16, reference.linear_w4a16, reference.linear_fp8):
        ops.register(op, PROVIDER, linear_by_blocks)


def linear_w8a8(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Multiply in int8, summing in int32."""
    ordered_TE = reference.in_stored_order(x_TE, weight).float()
    values_TE, scales_T1 = round_int8(ordered_TE, weight.group_size)
    y_TO = torch._int_mm(values_TE, weight.values.t()).float()
    y_TO.mul_(scales_T1).mul_(weight.scales_OG.squeeze(1))
    return reference.with_bias(y_TO, bias_O, x_TE.dtype)


def linear_w8a8_by_blocks(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Round the activations and multiply in fp32 what both sides stand for: the same but for the rounding of sums."""
    ordered_TE = reference.in_stored_order(x_TE, weight).float()
    rounded = QuantisedMatrix(*round_int8(ordered_TE, weight.group_size), weight.group_size)
    y_TO = linear_by_blocks(dequantise(rounded), replace(weight, order_E=None), None)
    return reference.with_bias(y_TO, bias_O, x_TE.dtype)


def linear_by_blocks(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Dequantise a block of outputs at a time, so that full-precision weights never leave the cache."""
    ordered_TE = reference.in_stored_order(x_TE, weight).float()
    outputs, inputs = weight.shape
    step = max(BLOCK // inputs, 16)
    y_TO = x_TE.new_empty(len(x_TE), outputs, dtype=torch.float32)
    for start in range(0, outputs, step):
        block = slice(start, min(start + step, outputs))
        y_TO[:, block] = F.linear(ordered_TE, dequantise(weight.rows(block)))
    return reference.with_bias(y_TO, bias_O, x_TE.dtype)


def run_experts_w8a8(
    x_TE: torch.Tensor,
    gate_up: QuantisedMatrix,
    down: QuantisedMatrix,
    weights_TC: torch.Tensor,
    ids_TC: torch.Tensor,
    experts: int,
    scheme: str,
) -> torch.Tensor:
    """Run each expert in int8."""
    return weighted_experts(x_TE, gate_up, down, weights_TC, ids_TC, experts, linear_w8a8)


def run_experts_by_blocks(
    x_TE: torch.Tensor,
    gate_up: QuantisedMatrix,
    down: QuantisedMatrix,
    weights_TC: torch.Tensor,
    ids_TC: torch.Tensor,
    experts: int,
    scheme: str,
) -> torch.Tensor:
    """Dequantise each chosen expert block by block."""
    return weighted_experts(x_TE, gate_up, down, weights_TC, ids_TC, experts, linear_by_blocks)


def _int_mm_is_exact() -> bool:
    """Return whether torch's int8 product sums without saturating: without VNNI some libraries add pairs in int16."""
    a = torch.full((2, 64), -127, dtype=torch.int8)
    b = torch.tensor((127, -127), dtype=torch.int8).repeat_interleave(8).unsqueeze(1).expand(16, 64).contiguous()
    return torch.equal(torch._int_mm(a, b.t()), reference.int8_product(a, b))
