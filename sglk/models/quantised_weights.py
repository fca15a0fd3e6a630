"""Checkpoints whose linear layers are quantised: what all their layouts share.

Letters: E inputs, O outputs, G groups of inputs that share a scale.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import torch

from sglk.backends.quantised import QuantisedMatrix, full_precision
from sglk.backends.schemes import LinearScheme, Quantization
from sglk.errors import ModelLoadError
from sglk.models.quantization_config import CheckpointQuantization
from sglk.models.weights import WeightSource


class QuantisedWeights(WeightSource, ABC):
    """A WeightSource that shows the tensors of each quantised layer as one `{layer}.weight`, a QuantisedMatrix.

    Which layers are quantised is read from the tensors that are there, not from the configuration's patterns.
    """

    marker: ClassVar[str]
    """Last part of the name of a tensor that every quantised layer has."""
    tensors: ClassVar[frozenset[str]]
    """Last parts of the names of all tensors that a quantised layer may have."""

    def __init__(self, stored: WeightSource, config: CheckpointQuantization) -> None:
        self.stored = stored
        self.config = config
        self._names = frozenset(stored.names())
        suffix = f".{self.marker}"
        self.layers = frozenset(name.removesuffix(suffix) for name in self._names if name.endswith(suffix))

    def __str__(self) -> str:
        return str(self.stored)

    def names(self) -> Iterable[str]:
        """Return the names of all tensors, `{layer}.weight` in place of those that make up a quantised layer."""
        plain = (name for name in self._names if not self._belongs_to_layer(name))
        return [*plain, *(f"{layer}.weight" for layer in self.layers)]

    def get(self, name: str) -> torch.Tensor | QuantisedMatrix:
        """Return one tensor as it is stored."""
        layer = name.removesuffix(".weight")
        return self.matrix(layer) if layer in self.layers and name.endswith(".weight") else self.stored.get(name)

    def quantization(self) -> Quantization:
        """Return the scheme of every quantised layer; the others are in full precision."""
        return Quantization(layers={layer: self.scheme(layer) for layer in sorted(self.layers)})

    def scheme(self, layer: str) -> LinearScheme:
        """Return how one layer is quantised."""
        return self.config.scheme

    @abstractmethod
    def matrix(self, layer: str) -> QuantisedMatrix:
        """Read one layer; raises ModelLoadError where a tensor is missing or does not fit the others."""

    def has(self, layer: str, part: str) -> bool:
        """Return whether a layer has a tensor of this name."""
        return f"{layer}.{part}" in self._names

    def part(self, layer: str, part: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """Read one tensor of a layer, which must have `shape` where that is given."""
        name = f"{layer}.{part}"
        tensor = full_precision(self.stored.get(name))
        if shape is not None and tuple(tensor.shape) != shape:
            raise ModelLoadError(f"{self}: tensor {name!r} has shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def words(self, layer: str, part: str, shape: tuple[int, int] | None = None) -> torch.Tensor:
        """Read an int32 matrix of packed values."""
        packed = self.part(layer, part, shape)
        if packed.dtype is not torch.int32 or packed.ndim != 2 or not packed.numel():
            raise self.misfit(layer, part, packed, "an int32 matrix")
        return packed

    def scales(self, layer: str, part: str, shape: tuple[int, int]) -> torch.Tensor:
        """Read a matrix of floats."""
        scales = self.part(layer, part, shape)
        if not scales.is_floating_point() or not scales.isfinite().all():
            raise self.misfit(layer, part, scales, "finite floats")
        return scales

    def misfit(self, layer: str, part: str, found: torch.Tensor, expected: str) -> ModelLoadError:
        """Return the complaint that a tensor is not what its layout says."""
        kind, sizes = str(found.dtype).removeprefix("torch."), list(found.shape)
        damage = ", some of them not finite" if kind.startswith("float") and not found.float().isfinite().all() else ""
        return ModelLoadError(
            f"{self}: tensor {f'{layer}.{part}'!r} holds {kind} of shape {sizes}{damage}, expected {expected}"
        )

    def _belongs_to_layer(self, name: str) -> bool:
        layer, _, part = name.rpartition(".")
        return part in self.tensors and layer in self.layers


class GroupOrder:
    """The order of columns that brings the groups of an act-order layer together (GPTQ's `g_idx`)."""

    def __init__(self, groups_E: torch.Tensor, group_size: int, origin: str) -> None:
        """Raise ModelLoadError where the groups are not all of `group_size` columns, the last of what is left."""
        order_E = groups_E.long().argsort(stable=True)
        expected_E = torch.arange(len(groups_E)) // group_size
        if not torch.equal(groups_E.long()[order_E], expected_E):
            raise ModelLoadError(f"{origin} does not divide the inputs into groups of {group_size}")
        self.order_E = None if torch.equal(groups_E.long(), expected_E) else order_E

    @property
    def digest(self) -> str:
        """Name of the order, the same for equal orders; empty for the order of inputs."""
        if self.order_E is None:
            return ""
        return hashlib.sha256(self.order_E.numpy().tobytes()).hexdigest()[:16]

    def in_order(self, values_OE: torch.Tensor) -> torch.Tensor:
        """Return the columns in this order."""
        return values_OE if self.order_E is None else values_OE[:, self.order_E]

    def scheme(self, scheme: LinearScheme) -> LinearScheme:
        """Return `scheme` with this order."""
        return replace(scheme, order=self.digest)


def unpack_int32(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Return the unsigned values in an int32 matrix, uint8, lowest bits first along `dim`."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values = packed.unsqueeze(dim + 1) >> (shifts[:, None] if dim == 0 else shifts)
    return (values & (1 << bits) - 1).flatten(dim, dim + 1).to(torch.uint8)


def signed(values: torch.Tensor) -> torch.Tensor:
    """Return unsigned 8-bit values less half of their range, as int8."""
    return (values.to(torch.int16) - 128).to(torch.int8)
