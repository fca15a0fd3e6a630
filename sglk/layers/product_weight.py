"""A full-precision matrix that one op or several multiply by, or look rows up in, each as it lays it out."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.few_bits import stacked
from sglk.backends.ops import BoundOp, Packing
from sglk.backends.quantised import full_precision
from sglk.layers.weights import (
    BitsSource,
    FewBitsSource,
    LayerContext,
    Part,
    TensorSource,
    Weight,
    read_few_bits,
    read_part,
)


class ProductWeight:
    """One matrix on the device, of one projection or of several stacked along the outputs.

    It is kept in each layout that one of its ops wants at present, and in no other.
    """

    def __init__(
        self, context: LayerContext, parts: tuple[Part, ...], *ops: BoundOp[..., Any], matrices: int | None = None
    ) -> None:
        """`matrices` = the parts are those of so many matrices of one shape, which the ops take as one tensor of three
        axes."""
        self.parts = parts
        self._matrices = matrices
        self._ops = list(ops)
        self._forms: dict[Packing | None, Any] = {}
        """The matrix in each layout; None = plain. Empty until the weights are loaded."""
        self._execute: Callable[[Callable[[], Any]], Any] = context.backend.execute_runnable
        context.weights.append(self)

    def serve(self, op: BoundOp[..., Any]) -> None:
        """Keep the matrix for `op` too; before it is loaded."""
        self._ops.append(op)

    def form(self, op: BoundOp[..., Any]) -> Any:
        """Return the matrix as the present implementation of `op` wants it; absent until the weights are loaded."""
        if op.packing not in self._forms:
            self._lay_out(self.tensor)
        return self._forms[op.packing]

    @property
    def tensor(self) -> torch.Tensor:
        """The plain matrix."""
        packing, form = next(iter(self._forms.items()))
        tensor: torch.Tensor = form if packing is None else packing.unpack(form)
        return tensor.flatten(0, -2)

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Return the device memory that the matrix takes; before it is loaded, what it takes as it is in `dtype`."""
        if self._forms:
            return sum(int(form.nbytes) for form in self._forms.values())
        return Weight(self.parts).num_bytes(dtype)

    def least_bytes(self, source: BitsSource, dtype: torch.dtype) -> int:
        """Return the least that the matrix may take once it is loaded from `source`."""
        packings = {op.packing for op in self._ops}
        bits = {source.kept_bits(name) for name, _ in self.parts}
        if dtype is not torch.float32 or None in packings or len(bits) > 1 or (least := bits.pop()) is None:
            return self.num_bytes(dtype)
        return int(sum(math.prod(shape) for _, shape in self.parts) * least / 8) * len(packings)

    def load(self, source: TensorSource, backend: DeviceBackend, dtype: torch.dtype) -> None:
        """Fill the matrix, converting to `dtype`, and lay it out."""
        if dtype is torch.float32 and self._matrices is None and (kept := self._kept(source)):
            self._forms = kept
        else:
            self._lay_out(self._read(source, backend, dtype))

    def _kept(self, source: TensorSource) -> dict[Packing | None, Any]:
        """Return the layouts of numbers of few bits as `source` stores them; none where it or an op has no such."""
        packings = dict.fromkeys(op.packing for op in self._ops)
        packs = {each: each.pack_few_bits for each in packings if each is not None and each.pack_few_bits is not None}
        if not isinstance(source, FewBitsSource) or len(packs) < len(packings):
            return {}
        outputs = sum(shape[0] for _, shape in self.parts)
        few = stacked((read_few_bits(source, part) for part in self.parts), outputs)
        if few is None:
            return {}
        return {packing: self._execute(partial(pack, few)) for packing, pack in packs.items()}

    def _read(self, source: TensorSource, backend: DeviceBackend, dtype: torch.dtype) -> torch.Tensor:
        if len(self.parts) == 1 and backend.capabilities.host_memory and all(op.packing for op in self._ops):
            # What is only laid out, and is where that is done, need not be there twice.
            return full_precision(read_part(source, self.parts[0])).to(dtype)
        plain = Weight(self.parts)
        plain.load(source, backend, dtype)
        return plain.tensor

    def _lay_out(self, plain: torch.Tensor) -> None:
        if self._matrices is not None:
            plain = plain.view(self._matrices, -1, plain.shape[1])
        wanted = dict.fromkeys(op.packing for op in self._ops)
        self._forms = {each: plain if each is None else self._packed(each, plain) for each in wanted}

    def _packed(self, packing: Packing, plain: torch.Tensor) -> Any:
        return self._execute(lambda: packing.pack(plain))
