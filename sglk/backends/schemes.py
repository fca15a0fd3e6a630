"""How the weights of linear layers are quantised: names and numbers, no tensors. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class LinearScheme:
    """How one linear layer is stored and multiplied."""

    kind: str
    """`w8a8`, `w8a16`, `w4a16` or `fp8`."""
    group_size: int = -1
    """Neighbouring inputs that share a scale; -1 = all inputs."""
    symmetric: bool = True
    """Whether 0 is where the format has it, or has a zero point in each group."""
    order: str = ""
    """Digest of the order of the stored columns; empty where it is the order of inputs."""

    def width(self, in_features: int) -> int:
        """Return the inputs that share a scale in a layer of `in_features`."""
        return in_features if self.group_size == -1 else min(self.group_size, in_features)

    def groups(self, in_features: int) -> int:
        """Return how many scales an output has in a layer of `in_features`."""
        return -(-in_features // self.width(in_features))

    def num_bytes(self, out_features: int, in_features: int, block_rows: int = 1) -> int:
        """Return the memory of a matrix with its scales, in the layout that all chips share (`QuantisedMatrix`).

        There every output has scales of its own; elsewhere `block_rows` of them share theirs.
        """
        scales = -(-out_features // block_rows) * self.groups(in_features)
        if self.kind == "w4a16":
            return out_features * (in_features // 2) + scales * (2 if self.symmetric else 4)
        return out_features * in_features + scales * (4 if self.symmetric else 5)


ON_LOAD = {
    "w8a8": LinearScheme("w8a8"),
    "w8a16": LinearScheme("w8a16"),
    "w4a16": LinearScheme("w4a16", 32, symmetric=False),
    "fp8": LinearScheme("fp8"),
}
"""What full-precision weights are rounded to when they are loaded."""


CPU_INT8_GROUP = 32
"""Inputs that share a scale where the cpu backend rounds the weights of a model without experts to w8a8."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Which products of a model are quantised, and how; embeddings and norms never are."""

    default: LinearScheme | None = None
    """Scheme of layers that `layers` does not name; None = full precision."""
    layers: Mapping[str, LinearScheme] = field(default_factory=dict)
    """By Hugging Face name, such as `model.layers.0.mlp.up_proj`."""
    head: LinearScheme | None = None
    """Scheme of the output head; None = full precision, in which all checkpoints have it."""

    @property
    def kind(self) -> str | None:
        """The kind that quantised layers share; None where there are none."""
        schemes = (self.default, *self.layers.values())
        return next((scheme.kind for scheme in schemes if scheme is not None), None)

    def of(self, layer: str) -> LinearScheme | None:
        """Return the scheme of one layer, None for full precision."""
        return self.layers.get(layer, self.default)


def on_load(scheme: LinearScheme | None, int8_group_size: int, *, experts: bool) -> Quantization:
    """Return how a model in full precision is rounded to `scheme` on a device; None = not at all.

    `int8_group_size` is the device's own for w8a8 (-1 = it has none), `experts` whether the model has some.
    """
    if scheme is None or scheme.kind != "w8a8" or experts or int8_group_size == -1:
        return Quantization(default=scheme)
    fine = replace(scheme, group_size=int8_group_size)
    # Rounded so finely the head adds a tenth to what the logits diverge, and it is much of a small model's step.
    return Quantization(default=fine, head=fine)
