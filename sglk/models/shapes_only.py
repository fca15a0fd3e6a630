"""Weights without values, for a device that computes nothing. Letters: O outputs, E inputs, G groups of inputs."""

from collections.abc import Iterable, Sequence

import torch

from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.schemes import LinearScheme
from sglk.errors import ModelLoadError
from sglk.layers.quantised_linear import QuantisedWeight
from sglk.layers.weights import DeclaredWeight, Shape

_META = torch.device("meta")


class ShapesOnly:
    """A WeightSource of tensors on torch's meta device: what `weights` want to be loaded, quantised where they are.

    Reading them takes no memory and hardly any time.
    """

    def __init__(self, weights: Sequence[DeclaredWeight]) -> None:
        self._shapes = {name: shape for weight in weights for name, shape in weight.parts}
        quantised = [weight for weight in weights if isinstance(weight, QuantisedWeight)]
        self._schemes = {name: weight.scheme for weight in quantised for name, _ in weight.parts}

    def __str__(self) -> str:
        return "weights without values"

    def names(self) -> Iterable[str]:
        """Return the names of all tensors."""
        return self._shapes.keys()

    def get(self, name: str) -> torch.Tensor | QuantisedMatrix:
        """Return one tensor."""
        shape = self._shapes.get(name)
        if shape is None:
            raise ModelLoadError(f"{self}: tensor {name!r} is missing")
        scheme = self._schemes.get(name)
        return torch.empty(shape, device=_META) if scheme is None else _matrix(shape, scheme)


def _matrix(shape_OE: Shape, scheme: LinearScheme) -> QuantisedMatrix:
    """Return a matrix of the dtypes that rounding on load makes."""
    outputs, inputs = shape_OE
    group_size = scheme.width(inputs)
    shape_OG = (outputs, -(-inputs // group_size))
    if scheme.kind != "w4a16":
        values = torch.float8_e4m3fn if scheme.kind == "fp8" else torch.int8
        return QuantisedMatrix(_empty(shape_OE, values), _empty(shape_OG, torch.float32), group_size)
    zeros_OG = None if scheme.symmetric else _empty(shape_OG, torch.float16)
    packed = _empty((outputs, inputs // 2), torch.uint8)
    return QuantisedMatrix(packed, _empty(shape_OG, torch.float16), group_size, zeros_OG)


def _empty(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)
