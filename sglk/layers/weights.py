"""Tensors that a model declares when it is built and fills when a checkpoint is read."""

import math
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.constraints import Trait
from sglk.backends.dtypes import dtype_name
from sglk.backends.few_bits import FewBits
from sglk.backends.ops import BoundOp, Op, P, R
from sglk.backends.quantised import QuantisedMatrix, full_precision
from sglk.backends.schemes import LinearScheme, Quantization
from sglk.errors import ModelLoadError
from sglk.parallel.exchange import Exchange
from sglk.parallel.ranks import ALONE, Ranks

Shape = tuple[int, ...]
Part: TypeAlias = tuple[str, Shape]
"""Hugging Face name and shape of one tensor of a checkpoint."""


class TensorSource(Protocol):
    """Where a weight reads its parts; its `str` names the files in messages."""

    def get(self, name: str) -> torch.Tensor | QuantisedMatrix:
        """Return one tensor on the CPU, as it is stored."""


@runtime_checkable
class FewBitsSource(Protocol):
    """A source some of whose fp32 tensors are stored as numbers of few bits."""

    def few_bits(self, name: str) -> FewBits | None:
        """Return what the tensor is stored as; None where that is something else."""


@runtime_checkable
class BitsSource(Protocol):
    """A source that knows what its matrices may be kept in without losing a bit."""

    def kept_bits(self, name: str) -> float | None:
        """Return the fewest bits that a number of the matrix may take in memory; None = not known."""


class DeclaredWeight(Protocol):
    """A weight of any kind, as the model that declares it sees it."""

    parts: tuple[Part, ...]

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Return the device memory that it takes in a model that computes in `dtype`, loaded or not."""

    def load(self, source: TensorSource, backend: DeviceBackend, dtype: torch.dtype) -> None:
        """Fill it, one part at a time; raises ModelLoadError where a part has another shape."""


class Weight:
    """One tensor on the device: a tensor of the checkpoint, or several stacked along the first axis."""

    __slots__ = ("parts", "tensor")

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        """The tensors of the checkpoint that go in, in order."""
        self.tensor: torch.Tensor
        """Absent until the weights are loaded."""

    @property
    def shape(self) -> Shape:
        """Shape on the device."""
        rest = self.parts[0][1][1:]
        assert all(shape[1:] == rest for _, shape in self.parts)
        return (sum(shape[0] for _, shape in self.parts), *rest)

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Return the device memory that the tensor takes in `dtype`."""
        return math.prod(self.shape) * dtype.itemsize

    def load(self, source: TensorSource, backend: DeviceBackend, dtype: torch.dtype) -> None:
        """Fill the tensor, converting to `dtype`; what the checkpoint has quantised is dequantised."""
        self.tensor = backend.allocate(self.shape, dtype)
        start = 0
        for part in self.parts:
            rows = part[1][0]
            # No name for the part here: it would keep one part in memory while the next is read.
            backend.copy(full_precision(read_part(source, part)), self.tensor[start : start + rows])
            start += rows


def read_part(source: TensorSource, part: Part) -> torch.Tensor | QuantisedMatrix:
    """Return one tensor of the checkpoint.

    Raises ModelLoadError where its shape is not the declared one, or its numbers stand for others that nothing tells.
    """
    name, shape = part
    stored = source.get(name)
    if isinstance(stored, torch.Tensor) and (not stored.is_floating_point() or stored.dtype.itemsize == 1):
        kind = str(stored.dtype).removeprefix("torch.")
        raise ModelLoadError(
            f"{source}: tensor {name!r} holds {kind} without the scales that belong to it; download the checkpoint "
            "again, with its config.json"
        )
    if tuple(stored.shape) != shape:
        raise ModelLoadError(f"{source}: tensor {name!r} has shape {list(stored.shape)}, expected {list(shape)}")
    return stored


def read_few_bits(source: FewBitsSource, part: Part) -> FewBits | None:
    """Return what one matrix is stored as; None where `read_part` has to read it, and to say what is wrong with it."""
    stored = source.few_bits(part[0])
    return stored if stored is not None and stored.shape == part[1] else None


@dataclass(frozen=True)
class LayerContext:
    """What every layer is built with: the device, the compute dtype, the model's list of weights, and its ranks."""

    backend: DeviceBackend
    dtype: torch.dtype
    weights: list[DeclaredWeight]
    quantization: Quantization = field(default_factory=Quantization)
    ranks: Ranks = ALONE
    """Who hold the model together; layers are built with the sizes of one rank's part."""
    gathers: bool = False
    """Whether the ranks bring the inputs of projections out of a block together, so that each computes whole outputs;
    else each computes, of the inputs that it has, its part of a sum."""
    exchanges: list[Exchange] = field(default_factory=list)
    """What a forward pass brings together, in order."""

    def share(self, outputs: int) -> int:
        """Return how many of the outputs of a projection out of a block this rank computes."""
        start, end = self.ranks.share(outputs) if self.gathers else (0, outputs)
        return end - start

    def gather(self, width: int, lines: int = 1) -> Exchange:
        """Declare that the ranks lay their parts of `lines` lines of each token side by side, at this point."""
        return self._exchange(Exchange(self.ranks, width, gathered=True, lines=lines))

    def join(self, width: int) -> Exchange:
        """Declare the end of a block, where its outputs come together in whichever way."""
        return self._exchange(Exchange(self.ranks, width, gathered=self.gathers))

    def _exchange(self, exchange: Exchange) -> Exchange:
        self.exchanges.append(exchange)
        return exchange

    def weight(self, *parts: Part) -> Weight:
        """Declare a weight made of the named tensors."""
        weight = Weight(parts)
        self.weights.append(weight)
        return weight

    def scheme(self, layer: str) -> LinearScheme | None:
        """Return how the linear layer of this name is quantised, None for full precision."""
        return self.quantization.of(layer)

    def op(self, op: Op[P, R], **traits: Trait) -> BoundOp[P, R]:
        """Choose the implementation of `op` for this shape class and the compute dtype."""
        return self.backend.ops.select(op, dtype=dtype_name(self.dtype), **traits)
