"""Memory on the system's large pages, where it has some: reading it in order pauses at fewer ends."""

import ctypes
import math
import mmap
import threading
import weakref
from contextlib import suppress

import torch

CHUNK_BYTES = 64 * 2**20
"""What is asked for at a time, for most matrices are smaller than a large page; it takes memory as it is written to."""
LARGE_PAGE = 2 * 2**20
LEAST_BYTES = 2**18
"""Smaller tensors are where all are."""
ALIGNMENT = 128

_lock = threading.Lock()
_chunk: "weakref.ref[mmap.mmap] | None" = None
"""The last one, as long as a tensor in it lives."""
_used = 0


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros for what lives as long as the model: the memory of one tensor is given back with that of others."""
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    try:
        with _lock:
            chunk, start = _room(size)
            room_N = torch.frombuffer(chunk, dtype=torch.uint8, count=size, offset=start)
    except OSError:
        # There may be enough for this one yet.
        return torch.zeros(shape, dtype=dtype)
    return room_N.view(dtype).view(shape)


def _room(size: int) -> tuple[mmap.mmap, int]:
    """Return a chunk and where in it so many bytes are free, which are taken from now on."""
    global _chunk, _used
    chunk = _chunk() if _chunk is not None else None
    if chunk is None or _used + size > len(chunk):
        chunk = mmap.mmap(-1, max(CHUNK_BYTES, size) + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            # Some systems have none.
            chunk.madvise(mmap.MADV_HUGEPAGE)
        _chunk, _used = weakref.ref(chunk), -torch.frombuffer(chunk, dtype=torch.uint8).data_ptr() % LARGE_PAGE
    start = _used
    _used += -(-size // ALIGNMENT) * ALIGNMENT
    return chunk, start


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return uninitialised memory that begins with a large page, with a storage of its own; what it leaves of the last
    one stays small pages."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    room_N = torch.empty(size + LARGE_PAGE, dtype=torch.uint8)
    start = -room_N.data_ptr() % LARGE_PAGE
    address, length = ctypes.c_void_p(room_N.data_ptr() + start), ctypes.c_size_t(size // LARGE_PAGE * LARGE_PAGE)
    # Where the system has none, nothing changes.
    ctypes.CDLL(None).madvise(address, length, mmap.MADV_HUGEPAGE)
    return room_N[start : start + size].view(dtype).view(shape)
