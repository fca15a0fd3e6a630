"""Quantised linear products of the cpu backend. Letters as in `quantised_linear.py`."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from sglk.backends import quantised_linear as reference
from sglk.backends.constraints import Constraint, Traits, multiple_of, one_of
from sglk.backends.ops import OpRegistry, Packing
from sglk.backends.quantise import round_int8
from sglk.backends.quantised import MIDDLE, QuantisedMatrix, dequantise, pack_nibbles, unpack_nibbles
from sglk.backends.quantised_moe import run_quantised_experts, weighted_experts

PROVIDER = "cpu"

BLOCK = 2**18
"""Weights that are dequantised at a time: 1 MiB of fp32, which a core's cache holds."""


def register_cpu_quantised_ops(ops: OpRegistry) -> None:
    """Offer every scheme."""
    ops.register(reference.linear_w8a8, PROVIDER, linear_w8a8_by_blocks)
    ops.register(run_quantised_experts, PROVIDER, run_quantised_experts.reference)
    ops.register(run_quantised_experts, PROVIDER, run_experts_by_blocks, one_of("scheme", "w8a16", "w4a16", "fp8"))
    if _int_mm_is_exact():
        ops.register(reference.linear_w8a8, PROVIDER, linear_w8a8, one_of("group_size", -1))
        whole = (one_of("scheme", "w8a8"), one_of("group_size", -1))
        ops.register(run_quantised_experts, PROVIDER, run_experts_w8a8, *whole)
    for op in (reference.linear_w8a16, reference.linear_w4a16, reference.linear_fp8, reference.linear_scattered):
        ops.register(op, PROVIDER, linear_by_blocks)
    ops.register(
        reference.linear_w4a16,
        PROVIDER,
        linear_int4pack,
        one_of("dtype", "bf16"),
        one_of("group_size", 32, 64, 128, 256),
        multiple_of("out_features", 16),
        Constraint("in_features % group_size == 0", _groups_are_whole),
        packing=Packing(pack_int4, unpack_int4),
    )


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
    ordered_TE = reference.in_stored_order(x_TE, weight)
    outputs, inputs = weight.shape
    step = max(BLOCK // inputs, 16)
    y_TO = x_TE.new_empty(len(x_TE), outputs)
    for start in range(0, outputs, step):
        block = slice(start, min(start + step, outputs))
        bias = None if bias_O is None else bias_O[block]
        y_TO[:, block] = F.linear(ordered_TE, dequantise(weight.rows(block)).to(x_TE.dtype), bias)
    return y_TO


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


@dataclass(frozen=True, slots=True)
class Int4Pack:
    """A 4-bit matrix in the blocks of torch's kernel, with what it takes to give the original back."""

    blocks: torch.Tensor
    scales_zeros_GO2: torch.Tensor
    """Scale, and what the stored value 8 stands for, in the compute dtype."""
    original: QuantisedMatrix
    """Without its values."""

    @property
    def nbytes(self) -> int:
        """Memory of all parts, in bytes."""
        return self.blocks.nbytes + self.scales_zeros_GO2.nbytes + self.original.nbytes


def linear_int4pack(x_TE: torch.Tensor, weight: Any, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Multiply with torch's 4-bit kernel; `weight` is what `pack_int4` returned."""
    ordered_TE = reference.in_stored_order(x_TE, weight.original).contiguous()
    y_TO = _int4pack_mm(ordered_TE, weight.blocks, weight.original.group_size, weight.scales_zeros_GO2)
    return y_TO if bias_O is None else y_TO.add_(bias_O)


def pack_int4(weight: QuantisedMatrix) -> Int4Pack:
    """Lay the values out for torch's kernel; only the bf16 shape class comes here."""
    blocks = torch._convert_weight_to_int4pack_for_cpu(unpack_nibbles(weight.values).int(), 1)
    scales_OG = weight.scales_OG.float()
    zeros_OG = (
        torch.zeros_like(scales_OG) if weight.zeros_OG is None else (MIDDLE - weight.zeros_OG.float()) * scales_OG
    )
    scales_zeros_GO2 = torch.stack((scales_OG.t(), zeros_OG.t()), dim=-1).to(torch.bfloat16).contiguous()
    return Int4Pack(blocks, scales_zeros_GO2, replace(weight, values=weight.values.new_empty(0, 0)))


def unpack_int4(packed: Int4Pack) -> QuantisedMatrix:
    """Read the values back: the kernel's own layout differs between processors, its products do not."""
    groups, outputs, _ = packed.scales_zeros_GO2.shape
    group_size = packed.original.group_size
    ones_EE = torch.eye(groups * group_size, dtype=torch.bfloat16)
    plain_GO2 = torch.tensor((1, MIDDLE), dtype=torch.bfloat16).expand(groups, outputs, 2).contiguous()
    values_EO = _int4pack_mm(ones_EE, packed.blocks, group_size, plain_GO2)
    return replace(packed.original, values=pack_nibbles(values_EO.t()))


def _int4pack_mm(
    x_TE: torch.Tensor, blocks: torch.Tensor, group_size: int, scales_zeros_GO2: torch.Tensor
) -> torch.Tensor:
    y_TO: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x_TE, blocks, group_size, scales_zeros_GO2)
    return y_TO


def _groups_are_whole(traits: Traits) -> bool:
    inputs, group_size = traits["in_features"], traits["group_size"]
    assert isinstance(inputs, int)
    assert isinstance(group_size, int)
    return inputs % group_size == 0


def _int_mm_is_exact() -> bool:
    """Return whether torch's int8 product sums without saturating: without VNNI some libraries add pairs in int16."""
    a = torch.full((2, 64), -127, dtype=torch.int8)
    b = torch.tensor((127, -127), dtype=torch.int8).repeat_interleave(8).unsqueeze(1).expand(16, 64).contiguous()
    return torch.equal(torch._int_mm(a, b.t()), reference.int8_product(a, b))
