"""Matrices of numbers of 8 or 4 bits that stand for exact fp32 numbers, as GGUF files have them.

Letters: O outputs, E inputs, G groups of neighbouring inputs that share a scale, S inputs of a group.
"""

from collections.abc import Sequence
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


def stacked(parts: Sequence[FewBits]) -> FewBits | None:
    """Return the matrices one below the other, None where they are not of one kind."""
    first = parts[0]
    if len(parts) == 1:
        return first
    kinds = {(part.values.dtype, part.scales_OG.dtype, part.group_size) for part in parts}
    if len(kinds) > 1:
        return None
    offsets = [part.offsets_OG for part in parts if part.offsets_OG is not None]
    values, scales_OG = torch.cat([part.values for part in parts]), torch.cat([part.scales_OG for part in parts])
    return FewBits(values, scales_OG, torch.cat(offsets) if offsets else None)


def restored(few: FewBits) -> torch.Tensor:
    """Return the fp32 matrix."""
    stored_OE = few.values if few.offsets_OG is None else unpack_nibbles(few.values)
    values_OGS = stored_OE.float().view(len(stored_OE), -1, few.group_size)
    values_OGS *= few.scales_OG.float().unsqueeze(-1)
    if few.offsets_OG is not None:
        # The product is exact, so nothing but this sum rounds.
        values_OGS += few.offsets_OG.float().unsqueeze(-1)
    return values_OGS.flatten(1)
