"""Linear products with own kernels. Letters: T tokens, E inputs, O outputs."""

from typing import Any

import torch

from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.panels import KINDS, PanelMatrix
from sglk.backends.cpu_kernels.visits import Visits
from sglk.backends.quantised import MIDDLE
from sglk.backends.quantised_linear import in_stored_order


class ProductKernel:
    """The C functions over weights in panels, fp32 in and out; a token's result never depends on its neighbours."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def linear(self, x_TE: torch.Tensor, weight_OE: Any, bias_O: torch.Tensor | None) -> torch.Tensor:
        """Return y_TO; `weight_OE` is what `pack_exactly` returned."""
        return self._run(x_TE, weight_OE, bias_O)

    def quantised(self, x_TE: torch.Tensor, weight: Any, bias_O: torch.Tensor | None) -> torch.Tensor:
        """Return y_TO; `weight` is what `pack_quantised` returned."""
        return self._run(in_stored_order(x_TE, weight.original), weight, bias_O)

    def embedding(self, ids_T: torch.Tensor, weight_VE: Any) -> torch.Tensor:
        """Return the rows of what `pack_exactly` returned."""
        vocabulary, width = weight_VE.shape
        y_TE = self._calls.empty(len(ids_T), width)
        ids_T = ids_T.contiguous()
        # C reads nothing outside, and a step that is repeated cannot raise anything.
        if len(ids_T) and not self._calls.recording and not 0 <= int(ids_T.min()) <= int(ids_T.max()) < vocabulary:
            raise IndexError(f"a token id is outside of the vocabulary of {vocabulary}")
        sizes = (vocabulary, width, weight_VE.group_size)
        self._calls("rows", *_stored(weight_VE), *sizes, ids_T.data_ptr(), len(ids_T), y_TE.data_ptr())
        return y_TE.to(weight_VE.dtype)

    def of_experts(self, x_RE: torch.Tensor, weights: PanelMatrix, visits: Visits) -> torch.Tensor:
        """Return y_RO: rows in the order of `visits`, each times the matrix of its expert."""
        if weights.original is not None:
            x_RE = in_stored_order(x_RE, weights.original)
        return self._run(x_RE, weights, None, visits)

    def _run(
        self,
        x_TE: torch.Tensor,
        weight: PanelMatrix,
        bias_O: torch.Tensor | None,
        visits: Visits | None = None,
    ) -> torch.Tensor:
        outputs, inputs = weight.shape
        x_TE = x_TE.contiguous()
        y_TO = self._calls.empty(len(x_TE), outputs)
        zeros = weight.zeros_NGP
        room_N = self._calls.empty(2 * x_TE.numel()) if len(x_TE) > 1 else None
        self._calls(
            "product",
            *_stored(weight),
            None if zeros is None else zeros.data_ptr(),
            MIDDLE if weight.numbers.dtype is torch.uint8 else 0,
            inputs,
            outputs,
            weight.group_size,
            None if visits is None else visits.experts.ctypes.data,
            None if visits is None else visits.starts.ctypes.data,
            1 if visits is None else len(visits.experts),
            x_TE.data_ptr(),
            len(x_TE),
            None if bias_O is None else bias_O.data_ptr(),
            y_TO.data_ptr(),
            None if room_N is None else room_N.data_ptr(),
            self._calls.threads,
        )
        return y_TO


def _stored(weight: PanelMatrix) -> tuple[int, int, int, int | None, int | None]:
    """Return kind and place of the numbers, those of the scales, and the place of the offsets."""
    numbers, scales, offsets = weight.numbers, weight.scales_NGP, weight.offsets_NGP
    if scales is None:
        return KINDS[numbers.dtype], numbers.data_ptr(), 0, None, None
    places = (scales.data_ptr(), None if offsets is None else offsets.data_ptr())
    return KINDS[numbers.dtype], numbers.data_ptr(), KINDS[scales.dtype], *places
