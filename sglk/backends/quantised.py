"""Quantised weight matrices in the layout that all chips share, and the way back to full precision.

Letters: O outputs, E inputs, G groups of neighbouring inputs that share a scale.
"""

from dataclasses import dataclass, replace

import torch

MIDDLE = 8
"""Stored value that means 0 in symmetric 4-bit values."""


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """W[o, order[e]] = (values[o, e] - zeros[o, group[e]]) * scales[o, group[e]].

    Columns lie group by group, the last of which may be shorter than `group_size`: group[e] = e // group_size.
    """

    values: torch.Tensor
    """int8 or float8_e4m3fn [O, E]; 4-bit values as uint8 [O, E / 2], input 2i in the low half of byte i."""
    scales_OG: torch.Tensor
    """Any float dtype."""
    group_size: int
    """Inputs per scale, at most E."""
    zeros_OG: torch.Tensor | None = None
    """Stored value that means 0, of any dtype and not always whole; absent = 8 for 4-bit values, 0 for others."""
    order_E: torch.Tensor | None = None
    """int64: the input that each column belongs to; absent = columns are in the order of inputs."""
    matrices: int = 1
    """Of one shape, such as those of experts, that lie one below the other and share `order_E`."""

    @property
    def four_bit(self) -> bool:
        """Whether a byte holds two values."""
        return self.values.dtype is torch.uint8

    @property
    def shape(self) -> tuple[int, int]:
        """O and E."""
        outputs, columns = self.values.shape
        return outputs, columns * 2 if self.four_bit else columns

    @property
    def nbytes(self) -> int:
        """Memory of all parts, in bytes."""
        parts = (self.values, self.scales_OG, self.zeros_OG, self.order_E)
        return sum(part.nbytes for part in parts if part is not None)

    def rows(self, chosen: slice) -> "QuantisedMatrix":
        """Return a view of some outputs, as one matrix."""
        zeros = None if self.zeros_OG is None else self.zeros_OG[chosen]
        return replace(self, values=self.values[chosen], scales_OG=self.scales_OG[chosen], zeros_OG=zeros, matrices=1)


def dequantise(matrix: QuantisedMatrix) -> torch.Tensor:
    """Return the matrix in fp32, columns in the order that they are stored in."""
    stored_OE = unpack_nibbles(matrix.values) if matrix.four_bit else matrix.values
    weight_OE = stored_OE.to(torch.float32)
    if matrix.zeros_OG is not None:
        weight_OE -= _per_column(matrix.zeros_OG, matrix)
    elif matrix.four_bit:
        weight_OE -= MIDDLE
    return weight_OE.mul_(_per_column(matrix.scales_OG, matrix))


def dequantise_in_order(matrix: QuantisedMatrix) -> torch.Tensor:
    """Return the matrix in fp32, columns in the order of inputs."""
    weight_OE = dequantise(matrix)
    return weight_OE if matrix.order_E is None else weight_OE[:, matrix.order_E.argsort()]


def full_precision(stored: torch.Tensor | QuantisedMatrix) -> torch.Tensor:
    """Return a tensor as it is, a quantised matrix in fp32 with its columns in the order of inputs."""
    return dequantise_in_order(stored) if isinstance(stored, QuantisedMatrix) else stored


def pack_nibbles(values: torch.Tensor) -> torch.Tensor:
    """Return [O, E / 2] bytes of [O, E] values below 16."""
    values = values.to(torch.uint8)
    return values[:, 0::2] | values[:, 1::2] << 4


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return the [O, E] values of [O, E / 2] bytes, uint8."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def _per_column(per_group: torch.Tensor, matrix: QuantisedMatrix) -> torch.Tensor:
    """Return [O, G] figures as fp32 [O, E] or [O, 1]."""
    per_group = per_group.to(torch.float32)
    if per_group.shape[1] == 1:
        return per_group
    return per_group.repeat_interleave(matrix.group_size, dim=1)[:, : matrix.shape[1]]
