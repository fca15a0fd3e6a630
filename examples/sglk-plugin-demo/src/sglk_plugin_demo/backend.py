import math

import torch

from sglk.backends.base import Capabilities, DeviceBackend, DeviceInfo, MemoryInfo
from sglk.backends.ops import OpRegistry
from sglk.errors import BackendError, CapacityError, ConfigError
from sglk_plugin_demo.ops import register_ops

MEMORY = 4 * 2**30


class DemoBackend(DeviceBackend):
    """One card. It works on the host's memory and processor, so that the example runs anywhere."""

    name = "demo"
    api_version = 1
    device = torch.device("cpu")
    capabilities = Capabilities(dtypes=frozenset({"fp32"}), kv_cache_dtypes=frozenset({"fp32"}), page_sizes=(16, 32))

    def __init__(self, *, index=0, fallback="warn", deny=(), num_threads=None, chip=None, **options):
        if options:
            raise ConfigError(f"backend.options: the demo backend has no option {min(options)!r}; it takes none")
        if index:
            raise BackendError(f"demo:{index} does not exist; there is only demo:0")
        self.ops = OpRegistry(fallback, deny)
        register_ops(self.ops)
        self.used = self.peak = 0

    def allocate(self, shape, dtype):
        size = math.prod(shape) * dtype.itemsize
        if size > MEMORY - self.used:
            raise CapacityError(f"{size} bytes were asked for, the demo card has {MEMORY - self.used} free")
        self.used += size
        self.peak = max(self.peak, self.used)
        return torch.empty(shape, dtype=dtype)

    def free(self, tensor):
        self.used -= tensor.untyped_storage().nbytes()
        tensor.untyped_storage().resize_(0)

    def memory_info(self):
        return MemoryInfo(total=MEMORY, free=MEMORY - self.used)

    def peak_memory_bytes(self):
        return self.peak

    def copy(self, src, dst):
        dst.copy_(src)

    def execute_runnable(self, runnable):
        with torch.inference_mode():
            return runnable()

    def synchronize(self):
        pass  # work is done when the call that asked for it returns

    def device_info(self):
        return DeviceInfo("demo card")
