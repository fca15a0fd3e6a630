"""Weights without values, for a device that computes nothing."""

from collections.abc import Iterable, Mapping

import torch

from sglk.errors import ModelLoadError


class ShapesOnly:
    """A WeightSource of tensors that have a shape and no content; loading them takes no time and no memory."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    def __str__(self) -> str:
        return "weights without values"

    def names(self) -> Iterable[str]:
        """Return the names of all tensors."""
        return self._shapes.keys()

    def get(self, name: str) -> torch.Tensor:
        """Return one tensor, on torch's meta device."""
        shape = self._shapes.get(name)
        if shape is None:
            raise ModelLoadError(f"{self}: tensor {name!r} is missing")
        return torch.empty(shape, device="meta")
