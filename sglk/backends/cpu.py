"""The machine's own processor as a device."""

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import torch

from sglk.backends.base import Capabilities, DeviceBackend, DeviceGraph, DeviceInfo, MemoryInfo
from sglk.backends.collectives import ProcessGroup, join_gloo
from sglk.backends.cpu_kernels import large_pages
from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.recording import record
from sglk.backends.cpu_kernels.registration import PROVIDER as KERNELS
from sglk.backends.cpu_kernels.registration import WORK, register_cpu_kernels
from sglk.backends.cpu_ops import PROVIDER as TORCH
from sglk.backends.cpu_ops import register_cpu_ops
from sglk.backends.cpu_quantised import register_cpu_quantised_ops
from sglk.backends.host_memory import host_memory, peak_resident_bytes
from sglk.backends.ops import REFERENCE, BoundOp, Denial, Fallback, OpRegistry
from sglk.backends.processor import processor_name
from sglk.backends.schemes import CPU_INT8_GROUP
from sglk.config.schema import ChipConfig
from sglk.errors import BackendError, CapacityError, ConfigError, is_out_of_memory

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

Kernels = Literal["native", "portable", "none"]


class CpuBackend(DeviceBackend):
    """Runs on `num_threads` threads (None = all cores); every `index` means the same processor.

    All arithmetic is in fp32, of which processors do as much as of 16 bits, most of them more. `dtype=auto` is fp32:
    a weight whose numbers all fit 16 bits is then kept in 16 bits, which loses nothing and halves what a token must
    read. With `dtype=bf16` or `fp16` weights, KV cache and what passes between ops have 16 bits: an op widens what it
    reads, computes in fp32 and rounds its result once. That halves the KV cache and is no faster.

    With the own kernels (`sglk.backends.cpu_kernels`) a request's logits have the same bits in every dtype, whatever
    is computed beside it and however many ranks there are; with torch's ops, which run where there is no C compiler,
    its last bits may differ. So they may where no kernel takes the shape: heads wider than 256, and w8a8 or w4a16 with
    an odd number of inputs or of inputs that share a scale.
    """

    name = "cpu"
    capabilities = Capabilities(
        dtypes=frozenset({"fp32", "bf16", "fp16"}),
        kv_cache_dtypes=frozenset({"fp32", "bf16", "fp16", "int8", "fp8_e4m3", "fp8_e5m2"}),
        quantization=frozenset({"w8a8", "w8a16", "w4a16", "fp8"}),
        graph_capture=True,
        eager_capture=True,
        # Eight bits with a scale for every 32 inputs are as near to fp32 as a tenth of what one scale an output costs.
        int8_group_size=CPU_INT8_GROUP,
        default_dtype="fp32",
        host_memory=True,
        collectives="gloo",
        exact_ranks=True,
    )
    device = torch.device("cpu")
    verified_on = "x86-64 processors"

    def __init__(
        self,
        *,
        num_threads: int | None = None,
        fallback: Fallback = "warn",
        deny: Sequence[Denial] = (),
        index: int = 0,
        chip: ChipConfig | None = None,
        kernels: Kernels = "native",
        **options: Any,
    ) -> None:
        """`kernels` says which of sglk's own kernels run.

        `native` = those for all instructions of this processor; `portable` = those for any processor of its kind;
        `none` = torch's ops alone.
        """
        if options:
            raise ConfigError(
                f"backend.options: the cpu backend has no option {sorted(options)[0]!r}; it takes kernels"
            )
        if kernels not in get_args(Kernels):
            raise ConfigError(f"backend.options.kernels={kernels!r}; choose one of {', '.join(get_args(Kernels))}")
        self.num_threads = num_threads or torch.get_num_threads()
        self.ops = OpRegistry(fallback, deny)
        register_cpu_ops(self.ops)
        register_cpu_quantised_ops(self.ops)
        self._calls: Calls | None = None
        if kernels != "none":
            self._calls = register_cpu_kernels(self.ops, kernels, self.num_threads)
        if self._calls is None:
            # Of torch's ops a recorded step is no faster.
            self.capabilities = replace(self.capabilities, graph_capture=False)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialised memory; the system commits its pages when they are first written."""
        return self._allocated(torch.empty, shape, dtype)

    def allocate_cache(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As `allocate`, on the system's large pages where it has some."""
        return self._allocated(large_pages.empty, shape, dtype)

    def free(self, tensor: torch.Tensor) -> None:
        """Drop the storage at once, even where views of it are still referenced."""
        tensor.untyped_storage().resize_(0)

    def _allocated(
        self, empty: Callable[..., torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        wanted, free = math.prod(shape) * dtype.itemsize, self.memory_info().free
        if wanted > free:
            raise CapacityError(
                f"the cpu device has {free} bytes of memory free, {wanted} were asked for; lower the need"
            )
        try:
            return empty(shape, dtype=dtype)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise CapacityError(
                f"the system gives this process no {wanted} bytes more; lower the need, or raise the limit (ulimit -v)"
            ) from error

    def memory_info(self) -> MemoryInfo:
        """Return the machine's memory, or the container's where that is smaller."""
        return host_memory()

    def peak_memory_bytes(self) -> int:
        """Return the most memory this process has held."""
        return peak_resident_bytes()

    def num_devices(self, ranks: int) -> int:
        """Return one device for each rank: they share the processor."""
        return ranks

    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Copy, converting the dtype where it differs."""
        dst.copy_(src)

    def execute_runnable(self, runnable: Callable[[], T]) -> T:
        """Run on the calling thread without autograd; torch's thread count is a setting of each calling thread."""
        before, threads = torch.get_num_threads(), 1 if self._kernels_do_the_work() else self.num_threads
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                return runnable()
        finally:
            torch.set_num_threads(before)

    def _kernels_do_the_work(self) -> bool:
        """Whether torch is left with what one thread does in no time.

        Its other threads would stay awake for a while after each op that they share, on the processors that the
        kernels' workers need.
        """
        return self._calls is not None and self.ops.providers(WORK) == {KERNELS}

    def capture_graph(self, runnable: Callable[[], T]) -> DeviceGraph[T]:
        """Do the work of `runnable` and write its calls down.

        Raises BackendError where the host reads numbers, or an op is not sglk's: nobody knows what else that does.
        """
        if self._calls is None:
            return super().capture_graph(runnable)
        with self.ops.observed(_run_own):
            return record(self._calls, runnable)

    def synchronize(self) -> None:
        """Return at once: work is done when the call that asked for it returns."""

    def process_group(self, store: "Store", rank: int, size: int, timeout: timedelta) -> ProcessGroup:
        """Join the ranks by gloo."""
        return join_gloo(store, rank, size, timeout)

    def device_info(self) -> DeviceInfo:
        """Return the processor's model name, the kernel and the vector instructions that torch uses."""
        return DeviceInfo(
            name=processor_name(),
            driver=platform.release(),
            sdk=f"torch {torch.__version__}",
            details={"threads": str(self.num_threads), "instructions": torch.backends.cpu.get_cpu_capability()},
        )


def _run_own(bound: BoundOp[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run what is bound; raises BackendError for what others have registered."""
    if (provider := bound.choice.provider) not in (KERNELS, TORCH, REFERENCE):
        raise BackendError(f"op {bound.op.name!r} of {provider!r} may do more than its calls show")
    return bound.function(*args, **kwargs)
