"""Blocks of GGUF files as numbers of few bits with scales, without a detour over fp32.

Layouts: `gguf.quants`, which restores the same fp32 numbers. Letters: O outputs, N super-blocks of 256 inputs, G groups
of 32 or 16 inputs.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import Q4_K

from sglk.backends.few_bits import FewBits, stacked
from sglk.backends.quantised import pack_nibbles

Raw = npt.NDArray[np.uint8]
ROWS = 128
"""Rows that are read together, so that little memory is needed."""


def few_bits_of(raw: Raw, kind: GGMLQuantizationType) -> FewBits | None:
    """Return the matrix whose rows have the bytes `raw`; None where its kind is not kept, or its scales need more."""
    read = _READERS.get(kind)
    if read is None or raw.ndim != 2:
        return None
    whole = stacked((read(raw[start : start + ROWS]) for start in range(0, len(raw), ROWS)), len(raw))
    assert whole is not None
    figures = [each for each in (whole.scales_OG, whole.offsets_OG) if each is not None]
    return whole if all(bool(each.isfinite().all()) for each in figures) else None


def _q8_0(raw: Raw) -> FewBits:
    blocks = raw.reshape(len(raw), -1, 34)
    return FewBits(_tensor(blocks[..., 2:].view(np.int8)).flatten(1), _halves(blocks[..., :2]))


def _q4_0(raw: Raw) -> FewBits:
    blocks = raw.reshape(len(raw), -1, 18)
    scales_OG = _halves(blocks[..., :2])
    # (number - 8) * scale; eight times an fp16 number is one too, unless it is too large.
    return FewBits(_nibbles(blocks[..., 2:]), scales_OG, -8 * scales_OG)


def _q4_1(raw: Raw) -> FewBits:
    blocks = raw.reshape(len(raw), -1, 20)
    return FewBits(_nibbles(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _q4_k(raw: Raw) -> FewBits:
    blocks = raw.reshape(len(raw), -1, 144)
    scale_ON1, least_ON1 = _halves(blocks[..., :2]).float(), _halves(blocks[..., 2:4]).float()
    steps, leasts = Q4_K.get_scale_min(np.ascontiguousarray(blocks[..., 4:16]).reshape(-1, 12))
    steps_ONG, leasts_ONG = (_tensor(each).float().view(len(raw), -1, 8) for each in (steps, leasts))
    # Products of 11 and 6 bits: fp32 holds them.
    scales_OG = (steps_ONG * scale_ON1.unsqueeze(-1)).flatten(1)
    offsets_OG = -(leasts_ONG * least_ON1.unsqueeze(-1)).flatten(1)
    return FewBits(_nibbles(blocks[..., 16:].reshape(len(raw), -1, 32)), scales_OG, offsets_OG)


def _q6_k(raw: Raw) -> FewBits:
    blocks = raw.reshape(len(raw), -1, 210)
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(2, 1)
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    four, two = (low & 15).reshape(len(raw), -1), (high & 3).reshape(len(raw), -1)
    values = (four | two << 4).astype(np.int8) - np.int8(32)
    scale_ON1 = _halves(blocks[..., 208:]).float()
    steps_ONG = _tensor(blocks[..., 192:208].view(np.int8)).float()
    return FewBits(_tensor(values), (steps_ONG * scale_ON1.unsqueeze(-1)).flatten(1))


_READERS: dict[GGMLQuantizationType, Callable[[Raw], FewBits]] = {
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q6_K: _q6_k,
}


def _nibbles(halves: Raw) -> torch.Tensor:
    """Return [O, E / 2] of [O, G, S / 2] bytes, which have a group's first inputs in their low halves."""
    inputs = np.concatenate((halves & 15, halves >> 4), axis=-1)
    return pack_nibbles(_tensor(inputs).flatten(1))


def _halves(stored: Raw) -> torch.Tensor:
    """Return fp16 [..] of [.., 2] bytes."""
    return _tensor(np.ascontiguousarray(stored).view(np.float16)).squeeze(-1)


def _tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.array(array))
