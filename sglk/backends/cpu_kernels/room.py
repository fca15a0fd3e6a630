"""Memory that all recorded steps of a backend work in: one runs at a time, so they share it."""

import math
from collections import defaultdict
from weakref import finalize

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 64
"""Bytes of a cache line."""

NUMPY = {
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
}

Bytes = npt.NDArray[np.uint8]


class Room:
    """Blocks of memory that are handed out again once nobody holds the tensor that they were handed out as.

    A step that is recorded thus works in as little memory as one that is not, and what it works in stays in the cache.
    What a step is recorded with keeps its address: a block is never given back.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = defaultdict(list)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor."""
        size = max(ALIGNMENT, 1 << (math.prod(shape) * dtype.itemsize - 1).bit_length())
        free = self._free[size]
        block = free.pop() if free else np.empty(size + ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        # The tensor's memory is this array's: it lives as long as any view of the tensor does.
        held = np.ndarray(shape, NUMPY[dtype], block, start)
        finalize(held, free.append, block)
        return torch.from_numpy(held)
