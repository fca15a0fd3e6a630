"""Tensors that a model declares when it is built and fills when a checkpoint is read."""

from dataclasses import dataclass

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.constraints import Trait
from sglk.backends.dtypes import dtype_name
from sglk.backends.ops import BoundOp, Op, P, R

Shape = tuple[int, ...]


class Weight:
    """One tensor on the device: a tensor of the checkpoint, or several stacked along the first axis."""

    __slots__ = ("parts", "tensor")

    def __init__(self, parts: tuple[tuple[str, Shape], ...]) -> None:
        self.parts = parts
        """Hugging Face name and shape of each tensor of the checkpoint that goes in, in order."""
        self.tensor: torch.Tensor
        """Absent until the weights are loaded."""

    @property
    def shape(self) -> Shape:
        """Shape on the device."""
        rest = self.parts[0][1][1:]
        assert all(shape[1:] == rest for _, shape in self.parts)
        return (sum(shape[0] for _, shape in self.parts), *rest)


@dataclass(frozen=True)
class LayerContext:
    """What every layer is built with: the device, the compute dtype, and the model's list of weights."""

    backend: DeviceBackend
    dtype: torch.dtype
    weights: list[Weight]

    def weight(self, *parts: tuple[str, Shape]) -> Weight:
        """Declare a weight made of the named tensors."""
        weight = Weight(parts)
        self.weights.append(weight)
        return weight

    def op(self, op: Op[P, R], **traits: Trait) -> BoundOp[P, R]:
        """Choose the implementation of `op` for this shape class and the compute dtype."""
        return self.backend.ops.select(op, dtype=dtype_name(self.dtype), **traits)
