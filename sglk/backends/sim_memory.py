"""The memory of a simulated device: tensors without content, every byte of which is accounted for."""

import math
import weakref
from threading import RLock
from typing import Any

import torch

from sglk.errors import CapacityError

GIB = 2**30
META = torch.device("meta")


class DeviceMemory:
    """Hands out meta tensors until `total` bytes are held; what is freed, or no longer referenced, comes back."""

    def __init__(self, total: int, owner: str) -> None:
        """`owner` names the device in messages."""
        self.total = total
        self.used = 0
        self.peak = 0
        self._owner = owner
        self._held: dict[int, weakref.finalize[Any, Any]] = {}
        # Garbage is collected on any thread, in the middle of anything.
        self._lock = RLock()

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be handed out."""
        return self.total - self.used

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of the device; raises CapacityError when it does not fit."""
        size = math.prod(shape) * dtype.itemsize
        if size > self.free_bytes:
            raise CapacityError(
                f"{self._owner} has {self.free_bytes} of {self.total} bytes of memory free, {size} were asked for; "
                "lower the need"
            )
        tensor = torch.empty(shape, dtype=dtype, device=META)
        storage = tensor.untyped_storage()
        # torch keeps the storage's Python object as long as any view of it lives.
        self._held[storage._cdata] = finalizer = weakref.finalize(storage, self._give_back, storage._cdata, size)
        finalizer.atexit = False
        with self._lock:
            self.used += size
            self.peak = max(self.peak, self.used)
        return tensor

    def release(self, tensor: torch.Tensor) -> None:
        """Take the memory of `tensor`, or of what it is a view of, back at once; harmless when that is done."""
        finalizer = self._held.get(tensor.untyped_storage()._cdata)
        if finalizer is not None:
            finalizer()

    def _give_back(self, storage: int, size: int) -> None:
        del self._held[storage]
        with self._lock:
            self.used -= size
