"""Finding out that an fp32 matrix was made of numbers of 8 or 4 bits, which then stand for it without losing a bit.

Letters: O outputs, R some of them, E inputs, G groups of 32 inputs, S = 32.
"""

from collections.abc import Callable

import torch

from sglk.backends.few_bits import FewBits, restored, stacked
from sglk.backends.quantise import INT8_MAX
from sglk.backends.quantised import pack_nibbles

FEW_BITS_GROUP = 32
ROWS = 256
"""Rows that are looked at together, so that little memory is needed."""


def in_few_bits(weight_OE: torch.Tensor) -> FewBits | None:
    """Return what an fp32 matrix was made of; None for one that was not, or not so that it can be seen.

    Of GGUF's kinds Q8_0, whose largest number in a group is 127, and Q4_1, which has a 0 and a 15 in a group.
    """
    if weight_OE.shape[1] % FEW_BITS_GROUP or not len(weight_OE):
        return None
    for guess in (_in_eight_bits, _in_four_bits):
        if (found := _of_parts(weight_OE, guess)) is not None:
            return found
    return None


def _of_parts(weight_OE: torch.Tensor, guess: Callable[[torch.Tensor], FewBits]) -> FewBits | None:
    parts: list[FewBits] = []
    for rows_RE in torch.split(weight_OE, ROWS):
        part = guess(rows_RE.view(len(rows_RE), -1, FEW_BITS_GROUP))
        if not torch.equal(restored(part), rows_RE):
            return None
        parts.append(part)
    return stacked(parts, len(weight_OE))


def _in_eight_bits(weight_RGS: torch.Tensor) -> FewBits:
    scales_RG = (weight_RGS.abs().amax(-1) / INT8_MAX).half()
    values_RGS = (weight_RGS / _divisors(scales_RG)).round_().clamp_(-INT8_MAX, INT8_MAX)
    return FewBits(values_RGS.to(torch.int8).flatten(1), scales_RG)


def _in_four_bits(weight_RGS: torch.Tensor) -> FewBits:
    low_RG, high_RG = weight_RGS.aminmax(dim=-1)
    scales_RG, offsets_RG = ((high_RG - low_RG) / 15).half(), low_RG.half()
    steps_RGS = (weight_RGS - offsets_RG.float().unsqueeze(-1)) / _divisors(scales_RG)
    return FewBits(pack_nibbles(steps_RGS.round_().clamp_(0, 15).flatten(1)), scales_RG, offsets_RG)


def _divisors(scales_RG: torch.Tensor) -> torch.Tensor:
    scales_RG1 = scales_RG.float().unsqueeze(-1)
    return torch.where(scales_RG1 == 0, 1.0, scales_RG1)
