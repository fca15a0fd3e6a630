"""Quantised weights without content, laid out as they are stored: no rounding of tensors by the thousand."""

import torch

from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.schemes import LinearScheme
from sglk.layers.quantised_linear import QuantisedWeight


class EmptyMatrices:
    """A TensorSource of one weight's parts, on torch's meta device."""

    def __init__(self, weight: QuantisedWeight) -> None:
        self._scheme = weight.scheme
        self._shapes = dict(weight.parts)
        self._made: dict[tuple[int, ...], QuantisedMatrix] = {}

    def __str__(self) -> str:
        return "weights without content"

    def get(self, name: str) -> QuantisedMatrix:
        """Return one tensor; all parts of one shape are the same."""
        shape = self._shapes[name]
        if shape not in self._made:
            self._made[shape] = empty_matrix(self._scheme, shape[0], shape[1])
        return self._made[shape]


def empty_matrix(scheme: LinearScheme, outputs: int, inputs: int) -> QuantisedMatrix:
    """Return a matrix laid out as the quantisers and the readers of checkpoints do."""

    def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    group_size = scheme.width(inputs)
    groups = -(-inputs // group_size)
    order_E = empty(torch.int64, inputs) if scheme.order else None
    if scheme.kind == "w4a16":
        scales_OG = empty(torch.float16, outputs, groups)
        zeros_OG = None if scheme.symmetric else empty(torch.float16, outputs, groups)
        return QuantisedMatrix(empty(torch.uint8, outputs, inputs // 2), scales_OG, group_size, zeros_OG, order_E)
    values = empty(torch.float8_e4m3fn if scheme.kind == "fp8" else torch.int8, outputs, inputs)
    return QuantisedMatrix(values, empty(torch.float32, outputs, groups), group_size, None, order_E)
