"""Random weights from the shape alone, to try a path without the files."""

import zlib
from collections.abc import Iterable, Mapping

import torch

from sglk.errors import ModelLoadError


class DummyWeights:
    """A WeightSource of random fp32 tensors, each fixed by the seed and its own name.

    Matrices are uniform with standard deviation 1/sqrt(fan-in), so that activations keep their size through any
    number of layers; norms are 1.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
        self._shapes = shapes
        self._seed = seed

    def __str__(self) -> str:
        return "runtime.load_format=dummy"

    def names(self) -> Iterable[str]:
        """Return the names of all tensors."""
        return self._shapes.keys()

    def get(self, name: str) -> torch.Tensor:
        """Return one tensor, the same at every call."""
        shape = self._shapes.get(name)
        if shape is None:
            raise ModelLoadError(f"{self}: tensor {name!r} is missing")
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        # The CPU generator looks at the lower 32 bits of its seed alone.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed}/{name}".encode()))
        bound = (3 / shape[-1]) ** 0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
