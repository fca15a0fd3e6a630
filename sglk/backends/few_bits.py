"""Matrices of numbers of 8 or 4 bits that stand for exact fp32 numbers, as GGUF files have them.

Letters: O outputs, E inputs, G groups of neighbouring inputs that share a scale, S inputs of a group.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from sglk.backends.quantised import unpack_nibbles


@dataclass(frozen=True, slots=True)
class FewBits:
    """A matrix number * scale, or number * scale + offset, rounded once to fp32."""

    values: torch.Tensor
    """int8 [O, E] without offsets; with them uint8 [O, E / 2], input 2i in the low half of byte i."""
    scales_OG: torch.Tensor
    """fp16 or fp32."""
    offsets_OG: torch.Tensor | None = None
    """Of the same dtype."""

    @property
    def shape(self) -> tuple[int, int]:
        """O and E."""
        outputs, columns = self.values.shape
        return outputs, columns if self.offsets_OG is None else 2 * columns

    @property
    def group_size(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.scales_OG.shape[1]

    def rows(self, chosen: slice | torch.Tensor) -> "FewBits":
        """Return some outputs, in that order."""
        offsets_OG = None if self.offsets_OG is None else self.offsets_OG[chosen]
        return FewBits(self.values[chosen], self.scales_OG[chosen], offsets_OG)

    def columns(self, start: int, end: int) -> "FewBits":
        """Return the inputs from `start` to before `end`, both where a group begins."""
        per_byte = 1 if self.offsets_OG is None else 2
        groups = slice(start // self.group_size, end // self.group_size)
        return replace(
            self,
            values=self.values[:, start // per_byte : end // per_byte],
            scales_OG=self.scales_OG[:, groups],
            offsets_OG=None if self.offsets_OG is None else self.offsets_OG[:, groups],
        )


def stacked(parts: Iterable[FewBits | None], outputs: int) -> FewBits | None:
    """Return the matrices one below the other, `outputs` rows in all; None where one is missing or of another kind.

    Each part is asked for when the one before it has been copied: little is held beside what is returned.
    """
    whole: FewBits | None = None
    start = 0
    for part in parts:
        if part is None or len(part.values) == outputs:
            return part
        whole = whole or _like(part, outputs)
        if _kind(part) != _kind(whole):
            return None
        place = whole.rows(slice(start, start + len(part.values)))
        place.values.copy_(part.values)
        place.scales_OG.copy_(part.scales_OG)
        if place.offsets_OG is not None and part.offsets_OG is not None:
            place.offsets_OG.copy_(part.offsets_OG)
        start += len(part.values)
    return whole


def _kind(few: FewBits) -> tuple[torch.dtype, torch.dtype, int]:
    return few.values.dtype, few.scales_OG.dtype, few.group_size


def _like(few: FewBits, outputs: int) -> FewBits:
    """Return room for `outputs` rows of the kind of `few`."""
    values, scales_OG, offsets_OG = (
        None if each is None else each.new_empty((outputs, each.shape[1]))
        for each in (few.values, few.scales_OG, few.offsets_OG)
    )
    assert values is not None
    assert scales_OG is not None
    return FewBits(values, scales_OG, offsets_OG)


def restored(few: FewBits) -> torch.Tensor:
    """Return the fp32 matrix."""
    stored_OE = few.values if few.offsets_OG is None else unpack_nibbles(few.values)
    values_OGS = stored_OE.float().view(len(stored_OE), -1, few.group_size)
    values_OGS *= few.scales_OG.float().unsqueeze(-1)
    if few.offsets_OG is not None:
        # The product is exact, so nothing but this sum rounds.
        values_OGS += few.offsets_OG.float().unsqueeze(-1)
    return values_OGS.flatten(1)
