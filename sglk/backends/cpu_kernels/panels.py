"""Weights of linear layers laid out for the product kernel: panels of 16 outputs, all of an input side by side.

Letters: O outputs, E inputs, G groups of inputs that share a scale, N panels, P = 16 outputs of a panel, X experts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from sglk.backends.cpu_kernels import large_pages
from sglk.backends.cpu_kernels.few_bits import ROWS, in_few_bits
from sglk.backends.few_bits import FewBits, restored
from sglk.backends.ops import Packing
from sglk.backends.quantised import QuantisedMatrix

Zeros: TypeAlias = Callable[..., torch.Tensor]
"""Takes a shape and `dtype`, returns zeros."""

PANEL = 16
FOUR = 4
ALIGNED = FOUR * PANEL
"""Outputs are filled up with zeros to a multiple of it: the kernel takes four panels at a time."""

KINDS = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.int8: 3,
    torch.uint8: 4,
    torch.float8_e4m3fn: 5,
    torch.float8_e5m2: 6,
}
"""Number that the kernels know a stored dtype by; uint8 holds two numbers of 4 bits."""


@dataclass(frozen=True, slots=True)
class PanelMatrix:
    """A matrix in panels, in the narrowest form that holds each of its numbers exactly; or quantised."""

    numbers: torch.Tensor
    """[N, E, P]; of 4-bit numbers [N / 4, E / 2, 4, P], the first of two inputs in the low half of a byte.

    Those with a scale for 32 of them are read as one stream that way; scales and the rest then lie alike.
    """
    shape: tuple[int, int]
    """O and E; of one expert where there are several."""
    scales_NGP: torch.Tensor | None = None
    """fp32 or fp16; a weight is (number - zero) * scale, or number * scale + offset. Absent for floats."""
    offsets_NGP: torch.Tensor | None = None
    """Of the same dtype; in place of zeros."""
    group_size: int = 1
    """Inputs that share a scale."""
    zeros_NGP: torch.Tensor | None = None
    """Of the same dtype; absent = 8 for 4-bit numbers, 0 for others."""
    original: QuantisedMatrix | None = None
    """Where quantised, what was packed: the dtypes of its parts, and what the panels do not have."""
    dtype: torch.dtype = torch.float32
    """Where not, what its numbers were."""

    @property
    def nbytes(self) -> int:
        """Memory of all parts, in bytes."""
        parts = (self.numbers, self.scales_NGP, self.offsets_NGP, self.zeros_NGP, self.original)
        return sum(part.nbytes for part in parts if part is not None)


def pack_exactly(weight_OE: torch.Tensor) -> PanelMatrix:
    """Lay a matrix out, in 16, 8 or 4 bits where every number survives that."""
    narrow = _narrowest(weight_OE)
    if narrow is torch.float32 and (found := in_few_bits(weight_OE)) is not None:
        return pack_few_bits(found)
    shape = (weight_OE.shape[0], weight_OE.shape[1])
    return PanelMatrix(in_panels(weight_OE, narrow, zeros=large_pages.zeros), shape, dtype=weight_OE.dtype)


def unpack_exactly(packed: PanelMatrix) -> torch.Tensor:
    """Return the matrix."""
    outputs, scales_NGP, offsets_NGP = packed.shape[0], packed.scales_NGP, packed.offsets_NGP
    stored = flat(apart(packed.numbers), outputs)
    if scales_NGP is None:
        return stored.to(packed.dtype)
    offsets_OG = None if offsets_NGP is None else flat(apart(offsets_NGP), outputs)
    return restored(FewBits(stored, flat(apart(scales_NGP), outputs), offsets_OG))


def pack_few_bits(found: FewBits) -> PanelMatrix:
    """Lay numbers of 8 or 4 bits out."""
    lay = in_fours if found.values.dtype is torch.uint8 else in_panels
    offsets_NGP = None if found.offsets_OG is None else lay(found.offsets_OG)
    values = lay(found.values, zeros=large_pages.zeros)
    return PanelMatrix(values, found.shape, lay(found.scales_OG), offsets_NGP, group_size=found.group_size)


def pack_experts(weight_XOE: torch.Tensor) -> PanelMatrix:
    """Lay the matrices of experts out one after the other, each filled up to whole panels: [X, N, E, P]."""
    experts, outputs, inputs = weight_XOE.shape
    narrow = _narrowest(weight_XOE.flatten(0, 1))
    numbers = weight_XOE.new_empty((experts, _filled(outputs) // PANEL, inputs, PANEL), dtype=narrow)
    for weight_OE, panels in zip(weight_XOE, numbers, strict=True):
        panels.copy_(in_panels(weight_OE))
    return PanelMatrix(numbers, (outputs, inputs), dtype=weight_XOE.dtype)


def unpack_experts(packed: PanelMatrix) -> torch.Tensor:
    """Return the matrices [X, O, E]."""
    return torch.stack([flat(panels, packed.shape[0]) for panels in packed.numbers]).to(packed.dtype)


def pack_quantised(weight: QuantisedMatrix) -> PanelMatrix:
    """Lay out values of 8 or 4 bits with their scales, which stay in fp16 where they and the zeros fit that."""
    figures = [weight.scales_OG] if weight.zeros_OG is None else [weight.scales_OG, weight.zeros_OG]
    half = all(_holds(torch.float16, figure.float()) for figure in figures)
    lay = in_fours if weight.values.dtype is torch.uint8 else in_panels
    panels = [lay(figure.half() if half else figure.float(), matrices=weight.matrices) for figure in figures]
    empty = [figure.new_empty(0, 0) for figure in figures]
    original = replace(weight, values=weight.values.new_empty(0, 0), scales_OG=empty[0])
    if weight.zeros_OG is None:
        zeros_NGP = None
    else:
        original, zeros_NGP = replace(original, zeros_OG=empty[1]), panels[1]
    numbers, size = lay(weight.values, matrices=weight.matrices), weight.group_size
    return PanelMatrix(numbers, weight.shape, panels[0], None, size, zeros_NGP, original)


def unpack_quantised(packed: PanelMatrix) -> QuantisedMatrix:
    """Return what was packed."""
    original, outputs = packed.original, packed.shape[0]
    assert original is not None
    assert packed.scales_NGP is not None
    scales_OG = flat(apart(packed.scales_NGP), outputs, original.matrices).to(original.scales_OG.dtype)
    zeros_OG = original.zeros_OG
    if zeros_OG is not None and packed.zeros_NGP is not None:
        zeros_OG = flat(apart(packed.zeros_NGP), outputs, original.matrices).to(zeros_OG.dtype)
    values = flat(apart(packed.numbers), outputs, original.matrices)
    return replace(original, values=values, scales_OG=scales_OG, zeros_OG=zeros_OG)


EXACT = Packing(pack_exactly, unpack_exactly, positions=(1,), pack_few_bits=pack_few_bits)
EXPERTS = Packing(pack_experts, unpack_experts, positions=(1, 2))
QUANTISED = Packing(pack_quantised, unpack_quantised)


def in_panels(
    matrix_OE: torch.Tensor, dtype: torch.dtype | None = None, matrices: int = 1, zeros: Zeros = torch.zeros
) -> torch.Tensor:
    """Return [N, E, P] of [O, E] in `dtype` (None = as it is), filled up with zeros: nothing but the result is held.

    Each of so many `matrices`, which lie one below the other, is filled up on its own. `zeros` gives the memory.
    """
    outputs, columns = len(matrix_OE) // matrices, matrix_OE.shape[1]
    matrix_XOE = matrix_OE.view(matrices, outputs, columns)
    whole, rest = divmod(outputs, PANEL)
    panels = zeros((matrices, _filled(outputs) // PANEL, columns, PANEL), dtype=dtype or matrix_OE.dtype)
    panels[:, :whole] = matrix_XOE[:, : whole * PANEL].view(matrices, whole, PANEL, columns).transpose(2, 3)
    if rest:
        panels[:, whole, :, :rest] = matrix_XOE[:, whole * PANEL :].transpose(1, 2)
    return panels.flatten(0, 1)


def in_fours(matrix_OE: torch.Tensor, matrices: int = 1, zeros: Zeros = torch.zeros) -> torch.Tensor:
    """Return [N / 4, E, 4, P]: all that four panels have of an input side by side. As in `in_panels`."""
    outputs, columns = len(matrix_OE) // matrices, matrix_OE.shape[1]
    matrix_XOE = matrix_OE.view(matrices, outputs, columns)
    whole, rest = divmod(outputs, ALIGNED)
    laid_out = zeros((matrices, _filled(outputs) // ALIGNED, columns, FOUR, PANEL), dtype=matrix_OE.dtype)
    panels = laid_out.transpose(2, 3)
    panels[:, :whole] = matrix_XOE[:, : whole * ALIGNED].view(matrices, whole, FOUR, PANEL, columns).transpose(3, 4)
    for panel, first in enumerate(range(outputs - rest, outputs, PANEL)):
        last = matrix_XOE[:, first : first + PANEL]
        panels[:, whole, panel, :, : last.shape[1]] = last.transpose(1, 2)
    return laid_out.flatten(0, 1)


def fours(panels: torch.Tensor) -> torch.Tensor:
    """Return [N / 4, E, 4, P] of [N, E, P], whatever dimensions follow."""
    return panels.view(-1, FOUR, *panels.shape[1:]).transpose(1, 2).contiguous()


def apart(panels: torch.Tensor) -> torch.Tensor:
    """Return [N, E, P] of what `in_panels` or `in_fours` returned."""
    return panels if panels.dim() == 3 else panels.transpose(1, 2).flatten(0, 1)


def flat(panels: torch.Tensor, outputs: int, matrices: int = 1) -> torch.Tensor:
    """Return [O, E] of [N, E, P]."""
    filled_XOE = panels.transpose(1, 2).flatten(0, 1).view(matrices, -1, panels.shape[1])
    return filled_XOE[:, : outputs // matrices].flatten(0, 1).contiguous()


def _filled(outputs: int) -> int:
    return -(-outputs // ALIGNED) * ALIGNED


def _narrowest(weight_OE: torch.Tensor) -> torch.dtype:
    return next((dtype for dtype in (torch.float16, torch.bfloat16) if _holds(dtype, weight_OE)), torch.float32)


def _holds(dtype: torch.dtype, weight_OE: torch.Tensor) -> bool:
    """Return whether the dtype has every number of the matrix."""
    return all(torch.equal(part.to(dtype).to(part.dtype), part) for part in torch.split(weight_OE, ROWS))
