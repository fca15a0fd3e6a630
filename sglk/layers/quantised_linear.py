"""Linear products with quantised weights. Letters: T tokens, E input width, O output width, G groups of inputs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from sglk.backends import quantised_linear as ops
from sglk.backends.base import DeviceBackend
from sglk.backends.few_bits import FewBits, restored
from sglk.backends.ops import BoundOp, Op
from sglk.backends.quantise import quantise_fp8, quantise_int4, quantise_int8
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.schemes import LinearScheme
from sglk.errors import ConfigError
from sglk.layers.weights import FewBitsSource, LayerContext, Part, TensorSource, Weight, read_few_bits, read_part

OPS: dict[str, Op[..., torch.Tensor]] = {
    "w8a8": ops.linear_w8a8,
    "w8a16": ops.linear_w8a16,
    "w4a16": ops.linear_w4a16,
    "fp8": ops.linear_fp8,
}
"""The op that runs each kind of scheme."""

TOGETHER = 2**16
"""Numbers that are rounded together, so that what it takes on the way is little, and in a core's cache."""

QUANTISERS: dict[str, Callable[[torch.Tensor, LinearScheme], QuantisedMatrix]] = {
    "w8a8": lambda weight_OE, scheme: quantise_int8(weight_OE, scheme.width(weight_OE.shape[1])),
    "w8a16": lambda weight_OE, scheme: quantise_int8(weight_OE, scheme.width(weight_OE.shape[1])),
    "w4a16": lambda weight_OE, scheme: quantise_int4(weight_OE, scheme.width(weight_OE.shape[1]), scheme.symmetric),
    "fp8": lambda weight_OE, scheme: quantise_fp8(weight_OE, scheme.width(weight_OE.shape[1])),
}
"""How some rows of a full-precision weight are rounded when it is loaded, each for itself."""


class QuantisedProduct:
    """One product whose weight is quantised: in the checkpoint, or from full precision when it is loaded."""

    def __init__(
        self,
        context: LayerContext,
        outputs: Mapping[str, int],
        in_features: int,
        bias: bool,
        scheme: LinearScheme,
    ) -> None:
        one_group = scheme.width(in_features) == in_features
        self._linear = context.op(
            OPS[scheme.kind],
            in_features=in_features,
            out_features=sum(outputs.values()),
            group_size=-1 if one_group else scheme.group_size,
            symmetric=scheme.symmetric,
            reordered=scheme.order != "",
        )
        parts = tuple((f"{name}.weight", (width, in_features)) for name, width in outputs.items())
        self.weight = QuantisedWeight(parts, scheme, self._linear)
        context.weights.append(self.weight)
        self.bias: Weight | None = None
        if bias:
            self.bias = context.weight(*((f"{name}.bias", (width,)) for name, width in outputs.items()))

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return y_TO."""
        return self._linear(x_TE, self.weight.packed, self.bias.tensor if self.bias else None)


class QuantisedWeight:
    """A quantised matrix on the device, of one projection or of several stacked along the outputs."""

    def __init__(
        self,
        parts: tuple[Part, ...],
        scheme: LinearScheme,
        linear: BoundOp[..., torch.Tensor],
        *,
        matrices: int = 1,
    ) -> None:
        """`matrices` = the parts are those of so many matrices of one shape, which lie one below the other."""
        self.parts = parts
        self.scheme = scheme
        self._matrices = matrices
        self._linear = linear
        self._packing = linear.packing
        self._packed: Any = None

    @property
    def packed(self) -> Any:
        """The weight as the op's present implementation wants it; absent until the weights are loaded."""
        if self._linear.packing is not self._packing:
            self._pack(self._unpacked())
        return self._packed

    @property
    def matrix(self) -> QuantisedMatrix:
        """The weight in the layout that all chips share."""
        return self._unpacked()

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Return the device memory that the weight takes, or will take, with its scales; `dtype` does not matter."""
        if self._packed is not None:
            return int(self._packed.nbytes)
        outputs, inputs = sum(shape[0] for _, shape in self.parts), self.parts[0][1][1]
        return self.scheme.num_bytes(outputs, inputs)

    def load(self, source: TensorSource, backend: DeviceBackend, dtype: torch.dtype) -> None:
        """Fill the matrix, one projection at a time."""
        matrix: QuantisedMatrix | None = None
        start = 0
        for part in self.parts:
            matrix = self._load_part(part, start, matrix, source, backend)
            start += part[1][0]
        assert matrix is not None
        self._pack(replace(matrix, matrices=self._matrices))

    def _load_part(
        self, part: Part, start: int, matrix: QuantisedMatrix | None, source: TensorSource, backend: DeviceBackend
    ) -> QuantisedMatrix:
        """Copy one projection into its rows from `start` on; the first one says of what kind all of them are."""
        few = read_few_bits(source, part) if isinstance(source, FewBitsSource) else None
        stored = read_part(source, part) if few is None else few
        outputs = sum(shape[0] for _, shape in self.parts)
        together = part[1][0] if isinstance(stored, QuantisedMatrix) else max(1, TOGETHER // part[1][1])
        for first in range(0, part[1][0], together):
            piece = self._quantised(part[0], _rows(stored, slice(first, first + together)))
            matrix = matrix or allocate_like(piece, outputs, backend)
            copy_rows(piece, matrix.rows(slice(start + first, start + first + piece.shape[0])), backend)
        assert matrix is not None
        return matrix

    def _quantised(self, name: str, stored: torch.Tensor | QuantisedMatrix) -> QuantisedMatrix:
        if isinstance(stored, QuantisedMatrix):
            return stored
        if self.scheme.kind == "w4a16" and stored.shape[1] % 2:
            raise ConfigError(
                f"runtime.quantization=w4a16 keeps two inputs in a byte, and {name!r} has {stored.shape[1]} of them; "
                "choose w8a8, w8a16, fp8 or null"
            )
        return QUANTISERS[self.scheme.kind](stored, self.scheme)

    def _pack(self, matrix: QuantisedMatrix) -> None:
        self._packing = self._linear.packing
        self._packed = self._packing.pack(matrix) if self._packing else matrix

    def _unpacked(self) -> QuantisedMatrix:
        matrix: QuantisedMatrix = self._packing.unpack(self._packed) if self._packing else self._packed
        return matrix


def _rows(stored: torch.Tensor | QuantisedMatrix | FewBits, chosen: slice) -> torch.Tensor | QuantisedMatrix:
    """Return some rows to round, or all of what the checkpoint has quantised."""
    if isinstance(stored, QuantisedMatrix):
        return stored
    return restored(stored.rows(chosen)) if isinstance(stored, FewBits) else stored[chosen]


def allocate_like(piece: QuantisedMatrix, outputs: int, backend: DeviceBackend) -> QuantisedMatrix:
    """Return device memory for `outputs` rows of the kind of `piece`, whose order of columns all rows share."""

    def rows_like(tensor: torch.Tensor) -> torch.Tensor:
        return backend.allocate((outputs, *tensor.shape[1:]), tensor.dtype)

    def copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        copy = backend.allocate(tuple(tensor.shape), tensor.dtype)
        backend.copy(tensor, copy)
        return copy

    return replace(
        piece,
        values=rows_like(piece.values),
        scales_OG=rows_like(piece.scales_OG),
        zeros_OG=None if piece.zeros_OG is None else rows_like(piece.zeros_OG),
        order_E=copied(piece.order_E),
    )


def copy_rows(src: QuantisedMatrix, dst: QuantisedMatrix, backend: DeviceBackend) -> None:
    """Copy values, scales and zero points."""
    backend.copy(src.values, dst.values)
    backend.copy(src.scales_OG, dst.scales_OG)
    if src.zeros_OG is not None:
        assert dst.zeros_OG is not None, "parts of one product with and without zero points"
        backend.copy(src.zeros_OG, dst.zeros_OG)
