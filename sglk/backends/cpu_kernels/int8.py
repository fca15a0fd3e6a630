"""Linear products in int8 with an own kernel. Letters: T tokens, E inputs, O outputs, G groups, N panels, P = 16."""

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import torch

from sglk.backends.cpu_kernels.panels import flat, in_panels
from sglk.backends.cpu_kernels.visits import Visits
from sglk.backends.ops import Packing
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.quantised_linear import in_stored_order


@dataclass(frozen=True, slots=True)
class Int8Panels:
    """A symmetric int8 matrix as the kernel reads it."""

    numbers: torch.Tensor
    """[N, E / 2, P, 2]: the kernel multiplies pairs of inputs."""
    scales_NGP: torch.Tensor
    """fp32."""
    shape: tuple[int, int]
    """O and E."""
    original: QuantisedMatrix
    """What was packed: the dtypes of its parts, and what the panels do not have."""

    @property
    def nbytes(self) -> int:
        """Memory of all parts, in bytes."""
        return self.numbers.nbytes + self.scales_NGP.nbytes + self.original.nbytes


def pack_int8(weight: QuantisedMatrix) -> Int8Panels:
    """Lay values and scales out."""
    panels = in_panels(weight.values, matrices=weight.matrices)
    numbers = panels.view(len(panels), -1, 2, panels.shape[2]).transpose(2, 3).contiguous()
    original = replace(weight, values=weight.values.new_empty(0, 0), scales_OG=weight.scales_OG.new_empty(0, 0))
    scales_NGP = in_panels(weight.scales_OG.float(), matrices=weight.matrices)
    return Int8Panels(numbers, scales_NGP, weight.shape, original)


def unpack_int8(packed: Int8Panels) -> QuantisedMatrix:
    """Return what was packed."""
    outputs, original = packed.shape[0], packed.original
    values = flat(packed.numbers.transpose(2, 3).flatten(1, 2), outputs, original.matrices)
    scales_OG = flat(packed.scales_NGP, outputs, original.matrices).to(original.scales_OG.dtype)
    return replace(original, values=values, scales_OG=scales_OG)


INT8 = Packing(pack_int8, unpack_int8)


class Int8Kernel:
    """The C function: products summed in int32, a token's result never depends on its neighbours."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._product = library.sglk_int8_product
        self._product.restype = None
        self._product.argtypes = [
            *(pointer, pointer, size, size, size, pointer, size),
            *(pointer, pointer, pointer, pointer, ctypes.c_int),
        ]

    def linear(self, x_TE: torch.Tensor, weight: Any, bias_O: torch.Tensor | None) -> torch.Tensor:
        """Return y_TO; `weight` is what `pack_int8` returned."""
        return self._run(in_stored_order(x_TE, weight.original), weight, bias_O)

    def of_experts(self, x_RE: torch.Tensor, weights: Int8Panels, visits: Visits) -> torch.Tensor:
        """Return y_RO: rows in the order of `visits`, each times the matrix of its expert."""
        experts = weights.original.matrices
        outputs, panels = weights.shape[0] // experts, len(weights.numbers) // experts
        x_RE = in_stored_order(x_RE, weights.original)
        y_RO = torch.empty(len(x_RE), outputs)
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
        y_TO = torch.empty(tokens, outputs)
        values_TE = torch.empty(tokens, inputs, dtype=torch.int16)
        scales_TG = torch.empty(tokens, weight.scales_NGP.shape[1])
        self._product(
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
            torch.get_num_threads(),
        )
        return y_TO
