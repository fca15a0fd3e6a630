"""Device work of an accelerator that torch itself drives, through the module of its kind such as `torch.cuda`."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import torch

from sglk.backends.base import DeviceBackend, MemoryInfo
from sglk.errors import BackendError, CapacityError

T = TypeVar("T")


class TorchAccelerator(DeviceBackend):
    """Memory, copies and execution on device `index` of the kind that torch calls `device_kind`.

    Work runs on one stream, and memory comes from torch's caching allocator, so a kernel of the chip's own library that
    is launched on the current stream is in order with torch's.
    """

    device_kind: ClassVar[str] = "cuda"
    """What torch calls the device, which says nothing about whose card it is."""
    asynchronous = True
    own_stream: ClassVar[bool] = True
    """Whether work runs on a stream of the backend, instead of the device's default one."""

    def __init__(self, index: int) -> None:
        self.device = torch.device(self.device_kind, index)
        self._module: Any = torch.get_device_module(self.device)
        self._stream: Any = self._module.Stream(self.device) if self.own_stream else None

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialised memory of the device."""
        wanted, free = math.prod(shape) * dtype.itemsize, self.memory_info().free
        if wanted <= free:
            try:
                with self._on_stream():
                    return torch.empty(shape, dtype=dtype, device=self.device)
            except torch.OutOfMemoryError:
                free = self.memory_info().free
        raise CapacityError(
            f"device {self.name}:{self.device.index} has {free} bytes of memory free, {wanted} were asked for in one "
            "piece; lower the need"
        )

    def free(self, tensor: torch.Tensor) -> None:
        """Give the storage back to torch's allocator, even where views of it are still referenced."""
        with self._on_stream():
            tensor.untyped_storage().resize_(0)

    def memory_info(self) -> MemoryInfo:
        """Return the device's memory; what torch's allocator holds without use is free."""
        free, total = self._module.mem_get_info(self.device)
        unused = self._module.memory_reserved(self.device) - self._module.memory_allocated(self.device)
        return MemoryInfo(total=total, free=free + unused)

    def peak_memory_bytes(self) -> int:
        """Return the most memory that torch's allocator has held for this process."""
        return int(self._module.max_memory_reserved(self.device))

    def num_devices(self, ranks: int) -> int:
        """Return how many devices torch sees."""
        return int(torch.get_device_module(self.device_kind).device_count())

    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Copy in stream order, converting the dtype where it differs.

        To or from pinned host memory this returns before the copy is done: `synchronize` before the host side is read
        or written. Other host memory goes through torch's own staging, and is free when this returns.
        """
        with self._on_stream():
            dst.copy_(src, non_blocking=src.is_pinned() or dst.is_pinned())

    def execute_runnable(self, runnable: Callable[[], T]) -> T:
        """Run on the stream without autograd; returns when all is launched, which may be before it is done."""
        with torch.inference_mode(), self._on_stream():
            return runnable()

    def synchronize(self) -> None:
        """Wait for the stream."""
        if self._stream is None:
            self._module.synchronize(self.device)
        else:
            self._stream.synchronize()

    def _on_stream(self) -> AbstractContextManager[object]:
        """Make the device and its stream the current ones of this thread."""
        if self._stream is None:
            return self._module.device(self.device)  # type: ignore[no-any-return]
        return self._module.stream(self._stream)  # type: ignore[no-any-return]


def check_index(kind: str, index: int, count: int) -> None:
    """Raise BackendError where device `index` of `count` does not exist."""
    if index < count:
        return
    if count == 0:
        raise BackendError(f"device {kind}:{index} does not exist; this machine shows no {kind} device to this process")
    there = f"is only {kind}:0" if count == 1 else f"are only {kind}:0 to {kind}:{count - 1}"
    raise BackendError(f"device {kind}:{index} does not exist; there {there}, so name no other in groups")
