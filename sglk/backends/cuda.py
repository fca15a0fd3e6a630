"""NVIDIA GPUs through torch's own CUDA device."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from sglk.backends.accelerator import TorchAccelerator, check_index
from sglk.backends.base import Capabilities, DeviceGraph, DeviceInfo
from sglk.backends.collectives import ProcessGroup
from sglk.backends.cuda_collectives import join_nccl
from sglk.backends.cuda_flashinfer import register_flashinfer
from sglk.backends.cuda_ops import register_cuda_ops
from sglk.backends.cuda_presence import DEVICE, absence, driver_version
from sglk.backends.finding import Finding, ok
from sglk.backends.ops import Denial, Fallback, OpRegistry
from sglk.config.schema import ChipConfig
from sglk.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

ATTENTION = ("auto", "sdpa", "flashinfer")
"""Values of the option `attention`; auto = flashinfer where it is installed, torch's own kernels elsewhere."""


class CudaBackend(TorchAccelerator):
    """GPU `index` of those that CUDA_VISIBLE_DEVICES leaves; not verified on hardware.

    Takes the option `attention`. Work runs on a stream of its own, and decode steps can be recorded as CUDA graphs.
    """

    name = "cuda"

    def __init__(
        self,
        *,
        index: int = 0,
        num_threads: int | None = None,
        fallback: Fallback = "warn",
        deny: Sequence[Denial] = (),
        chip: ChipConfig | None = None,
        attention: str = "auto",
        **options: Any,
    ) -> None:
        _check_options(attention, options)
        if missing := self.absence():
            raise BackendError(f"{self.name}: not available ({missing.why}); {missing.todo}")
        check_index(self.name, index, self.num_devices(1))
        super().__init__(index)
        compute_capability = self.compute_capability()
        self.capabilities = capabilities_of(compute_capability)
        self.ops = OpRegistry(fallback, deny)
        register_cuda_ops(self.ops, compute_capability)
        if attention == "flashinfer" or (attention == "auto" and find_spec("flashinfer")):
            register_flashinfer(self.ops, self.device)
        self._graph_pool: Any = None

    @classmethod
    def absence(cls) -> Finding | None:
        """Return why no GPU can be used here, or None."""
        return absence()

    @classmethod
    def installed_versions(cls) -> Mapping[str, str]:
        """Return the kernel driver's version and the CUDA version that torch is built for."""
        found = {"driver": driver_version(), "sdk": torch.version.cuda}
        return {name: version for name, version in found.items() if version is not None}

    @classmethod
    def diagnose(cls) -> Iterable[Finding]:
        """Yield whether a GPU can be used."""
        missing = cls.absence()
        yield missing or ok(DEVICE, f"torch {torch.__version__} sees {torch.cuda.device_count()} for CUDA work")

    def compute_capability(self) -> tuple[int, int]:
        """Return NVIDIA's number for what the device can do, such as (9, 0)."""
        return torch.cuda.get_device_capability(self.device)

    def properties(self) -> Any:
        """Return what the driver tells of the device: `name`, `multi_processor_count`, `total_memory`."""
        return torch.cuda.get_device_properties(self.device)

    def capture_graph(self, runnable: Callable[[], T]) -> DeviceGraph[T]:
        """Record `runnable` as a CUDA graph; raises BackendError where something in it cannot be recorded.

        All graphs of the device share their memory, so a result holds until the next replay of any of them.
        """
        if self._graph_pool is None:
            self._graph_pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Threads of the HTTP server may do as they like with CUDA meanwhile.
        capture = torch.cuda.graph(graph, pool=self._graph_pool, stream=self._stream, capture_error_mode="thread_local")
        try:
            with torch.inference_mode(), capture:
                result = runnable()
        except RuntimeError as error:
            raise BackendError(f"cuda: no graph could be recorded ({' '.join(str(error).split())})") from error
        return CudaGraph(graph, result)

    def process_group(self, store: "Store", rank: int, size: int, timeout: timedelta) -> ProcessGroup:
        """Join the ranks by NCCL, whose sums nobody waits for: see `NcclSums`."""
        if self.capabilities.collectives is None:
            return super().process_group(store, rank, size, timeout)
        torch.cuda.set_device(self.device)
        return join_nccl(store, rank, size, timeout, self.device)

    def device_info(self) -> DeviceInfo:
        """Return the GPU's name, the driver, the CUDA version that torch is built for, and its numbers."""
        properties = self.properties()
        major, minor = self.compute_capability()
        return DeviceInfo(
            name=properties.name,
            driver=driver_version(),
            sdk=f"CUDA {torch.version.cuda}",
            details={
                "torch": torch.__version__,
                "compute_capability": f"{major}.{minor}",
                "multiprocessors": str(properties.multi_processor_count),
                "memory_bytes": str(properties.total_memory),
            },
        )


class CudaGraph(Generic[T]):
    """Work recorded on the stream of a backend, and its result."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: T) -> None:
        self._graph = graph
        self.result = result

    def replay(self) -> T:
        """Launch the work on the current stream."""
        self._graph.replay()
        return self.result


def capabilities_of(compute_capability: tuple[int, int]) -> Capabilities:
    """Return what a GPU can do: bf16 from compute capability 8.0 (Ampere) on, fp8 from 8.9 (Ada and Hopper)."""
    dtypes = {"fp32", "fp16"} | ({"bf16"} if compute_capability >= (8, 0) else set())
    fp8 = compute_capability >= (8, 9)
    return Capabilities(
        dtypes=frozenset(dtypes),
        kv_cache_dtypes=frozenset(dtypes | {"int8"} | ({"fp8_e4m3", "fp8_e5m2"} if fp8 else set())),
        quantization=frozenset({"w8a8", "w8a16", "w4a16"} | ({"fp8"} if fp8 else set())),
        graph_capture=True,
        fp8_activations=compute_capability >= (9, 0),
        default_dtype="bf16" if "bf16" in dtypes else "fp16",
        collectives="nccl" if torch.distributed.is_nccl_available() else None,
    )


def _check_options(attention: str, options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"backend.options: the cuda backend has no option {sorted(options)[0]!r}; it takes attention")
    if attention not in ATTENTION:
        raise ConfigError(f"backend.options.attention={attention}; choose one of {', '.join(ATTENTION)}")
    if attention == "flashinfer" and find_spec("flashinfer") is None:
        raise ConfigError(
            "backend.options.attention=flashinfer, but flashinfer is not installed in this Python; install "
            "flashinfer-python, or leave the option at auto"
        )
