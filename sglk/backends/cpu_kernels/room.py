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
        self._blocks: dict[int, Bytes] = {}
        """All blocks, by the address that they are handed out at."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor."""
        wanted = max(ALIGNMENT, 1 << (math.prod(shape) * dtype.itemsize - 1).bit_length())
        # What a larger step has worked in is large enough.
        size = min((size for size, free in self._free.items() if free and size >= wanted), default=wanted)
        free = self._free[size]
        block = free.pop() if free else self._allocate(size)
        # The tensor's memory is this array's: it lives as long as any view of the tensor does.
        held = np.ndarray(shape, NUMPY[dtype], block)
        finalize(held, free.append, block)
        return torch.from_numpy(held)

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same numbers, whose memory others may be handed as soon as nobody holds `tensor`."""
        block = self._blocks.get(tensor.untyped_storage().data_ptr())
        if block is None:
            return tensor
        numbers = torch.from_numpy(block).view(tensor.dtype)
        return numbers.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _allocate(self, size: int) -> Bytes:
        memory = np.empty(size + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        block = memory[start : start + size]
        self._blocks[block.ctypes.data] = block
        return block
