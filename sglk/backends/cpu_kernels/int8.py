"""Linear products in int8 with own kernels. Letters: T tokens, E inputs, O outputs, G groups, N panels, P = 16."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.panels import apart, flat, fours, in_panels
from sglk.backends.cpu_kernels.visits import Visits
from sglk.backends.ops import Packing
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.quantised_linear import in_stored_order

PAIR = 2
SIGN = 128
"""What is added to numbers of which four lie together: the processor's instruction takes them without a sign."""


@dataclass(frozen=True, slots=True)
class Int8Panels:
    """A symmetric int8 matrix as one of the kernels reads it."""

    numbers: torch.Tensor
    """int8 [N, E / 2, P, 2], or uint8 [N / 4, E / 4, 4, P, 4]: a kernel multiplies two or four inputs at a time."""
    scales_NGP: torch.Tensor
    """fp32; with uint8 numbers [N / 4, G, 4, P]."""
    shape: tuple[int, int]
    """O and E."""
    original: QuantisedMatrix
    """What was packed: the dtypes of its parts, and what the panels do not have."""

    @property
    def nbytes(self) -> int:
        """Memory of all parts, in bytes."""
        return self.numbers.nbytes + self.scales_NGP.nbytes + self.original.nbytes


def pack_int8(together: int, weight: QuantisedMatrix) -> Int8Panels:
    """Lay values and scales out, `together` inputs side by side where they share a scale, else two."""
    inputs = weight.shape[1]
    if inputs % together or (weight.group_size < inputs and weight.group_size % together):
        together = PAIR
    panels = in_panels(weight.values, matrices=weight.matrices)
    numbers = panels.view(len(panels), -1, together, panels.shape[2]).transpose(2, 3)
    scales_NGP = in_panels(weight.scales_OG.float(), matrices=weight.matrices)
    if together == PAIR:
        numbers = numbers.contiguous()
    else:
        numbers, scales_NGP = fours(numbers.contiguous()).view(torch.uint8).bitwise_xor_(SIGN), fours(scales_NGP)
    original = replace(weight, values=weight.values.new_empty(0, 0), scales_OG=weight.scales_OG.new_empty(0, 0))
    return Int8Panels(numbers, scales_NGP, weight.shape, original)


def unpack_int8(packed: Int8Panels) -> QuantisedMatrix:
    """Return what was packed."""
    outputs, original, numbers = packed.shape[0], packed.original, packed.numbers
    if numbers.dtype is torch.uint8:
        numbers = apart(numbers).bitwise_xor(SIGN).view(torch.int8)
    values = flat(numbers.transpose(2, 3).flatten(1, 2), outputs, original.matrices)
    scales_OG = flat(apart(packed.scales_NGP), outputs, original.matrices).to(original.scales_OG.dtype)
    return replace(original, values=values, scales_OG=scales_OG)


class Int8Kernel:
    """The C functions: products summed in int32, a token's result never depends on its neighbours.

    Where the processor multiplies four pairs of bytes at once `sglk_int8_dots` runs, which comes to the same bits.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.packing = Packing(partial(pack_int8, calls.library.sglk_int8_together()), unpack_int8)

    def linear(self, x_TE: torch.Tensor, weight: Any, bias_O: torch.Tensor | None) -> torch.Tensor:
        """Return y_TO; `weight` is what `packing` returned."""
        return self._run(in_stored_order(x_TE, weight.original), weight, bias_O)

    def of_experts(self, x_RE: torch.Tensor, weights: Int8Panels, visits: Visits) -> torch.Tensor:
        """Return y_RO: rows in the order of `visits`, each times the matrix of its expert."""
        experts = weights.original.matrices
        outputs, panels = weights.shape[0] // experts, len(weights.numbers) // experts
        x_RE = in_stored_order(x_RE, weights.original)
        y_RO = self._calls.empty(len(x_RE), outputs)
        for expert, start, end in zip(visits.experts, visits.starts[:-1], visits.starts[1:], strict=True):
            own = slice(expert * panels, (expert + 1) * panels)
            weight = replace(
                weights,
                numbers=weights.numbers[own],
                scales_NGP=weights.scales_NGP[own],
                shape=(outputs, weights.shape[1]),
            )
            y_RO[start:end] = self._run(x_RE[start:end], weight, None)
        return y_RO

    def _run(self, x_TE: torch.Tensor, weight: Int8Panels, bias_O: torch.Tensor | None) -> torch.Tensor:
        x_TE = x_TE.contiguous()
        tokens, (outputs, inputs) = len(x_TE), weight.shape
        y_TO = self._calls.empty(tokens, outputs)
        pairs = weight.numbers.dtype is torch.int8
        values_TE = self._calls.empty(tokens, inputs, dtype=torch.int16 if pairs else torch.int8)
        scales_TG = self._calls.empty(tokens, weight.scales_NGP.shape[1])
        taken = (
            weight.numbers.data_ptr(),
            weight.scales_NGP.data_ptr(),
            inputs,
            outputs,
            weight.original.group_size,
            x_TE.data_ptr(),
            tokens,
            None if bias_O is None else bias_O.data_ptr(),
            y_TO.data_ptr(),
            values_TE.data_ptr(),
            scales_TG.data_ptr(),
        )
        if pairs:
            self._calls("int8_product", *taken, self._calls.threads)
        else:
            starts_TG = self._calls.empty(*scales_TG.shape, dtype=torch.int32)
            self._calls("int8_dots", *taken, starts_TG.data_ptr(), self._calls.threads)
        return y_TO
