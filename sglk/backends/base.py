"""The contract between sglk and a chip: four kinds of device work, a capability table and the chip's ops."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

import torch

from sglk.backends.collectives import ProcessGroup
from sglk.backends.finding import Finding
from sglk.backends.memory import MemoryInfo as MemoryInfo
from sglk.backends.ops import OpRegistry
from sglk.errors import BackendError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

API_VERSION = 1
"""Version of this contract; a plugin states the one it was written for as `api_version`."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; checked before anything is loaded."""

    dtypes: frozenset[str]
    """Compute dtypes: `fp32`, `bf16`, `fp16`."""
    kv_cache_dtypes: frozenset[str]
    quantization: frozenset[str] = frozenset()
    page_sizes: tuple[int, ...] = ()
    """Legal page sizes; empty = any."""
    graph_capture: bool = False
    """Whether `capture_graph` works."""
    eager_capture: bool = False
    """Whether it also does the work, and costs little more than that: then each number of rows gets its own graph."""
    int8_group_size: int = -1
    """Inputs that share a scale where w8a8 rounds the weights of a model without experts, its output head included;
    -1 = all of an output's, and the head stays as it is."""
    fp8_activations: bool = False
    """Whether products of scheme `fp8` round the activations too, each token with a scale of its own."""
    default_dtype: str = "fp32"
    """What `runtime.dtype=auto` means."""
    host_memory: bool = False
    """Whether the device works in the machine's main memory, which it shares with everything else."""
    head_major_pages: bool = False
    """Whether the KV pool holds pages [N, K, P, D], each head's P tokens side by side, instead of slots [S, K, D]."""
    collectives: str | None = None
    """Library that adds tensors over several devices (`gloo`, `nccl`, ...); None = no tensor parallelism."""
    exact_ranks: bool = False
    """Whether ranks give the bits of a model in one piece unless they are told otherwise: each computes whole sums for
    some outputs, in place of a part of all sums. It takes more traffic between devices, and products that compute an
    output in the same way whatever others stand beside it."""


@dataclass(frozen=True)
class DeviceInfo:
    """The device as the machine names it, for records and profiles."""

    name: str
    driver: str | None = None
    sdk: str | None = None
    details: dict[str, str] = field(default_factory=dict)


class DeviceGraph(Protocol[T_co]):
    """Device work that was recorded once and is launched as a whole."""

    @property
    def result(self) -> T_co:
        """The result objects. Where capture is eager, they hold what it came to."""

    def replay(self) -> T_co:
        """Do the recorded work again, on what its input tensors hold now; returns the same result objects each time."""


class WorkClock(Protocol):
    """The time of a simulated device, to which its ops hand over their work."""

    @property
    def busy_s(self) -> float:
        """Seconds of work handed over so far."""

    def charge(self, seconds: float) -> None:
        """Hand over work that takes `seconds` on the device."""


class DeviceBackend(ABC):
    """One device of one chip family. Nothing above this class knows which chip it runs on.

    What makes one takes keywords, all of which have defaults:

    - `index`: which of the machine's devices of this kind; BackendError where there is none.
    - `num_threads`: threads of a processor that computes; None = all.
    - `fallback` and `deny`: to be handed to OpRegistry as they are.
    - `chip`: the chip's description, a `sglk.config.schema.ChipConfig`; None = not told.
    - those of `backend.options`; an unknown one is a ConfigError that names it.

    An op in `ops` leaves its arguments alone, but for those that its reference writes to or says it may overwrite
    (`store_kv`, `adjust_logits`, `mask_logits`, `add_rms_norm`). It never uses the memory of a result that it returned
    before. Each replica calls ops from a thread of its own, and several may at the same time: memory that an op works
    in belongs to one backend, not to its module. `sglk.testing.contract` tries all three.
    """

    name: str
    api_version: int = API_VERSION
    capabilities: Capabilities
    ops: OpRegistry
    device: torch.device
    asynchronous: bool = False
    """Whether `execute_runnable` returns while the device still works, so that the host can do something else."""
    simulated: bool = False
    """Whether the ops compute nothing: results have the right shape and dtype, their values mean nothing."""
    clock: "WorkClock | None" = None
    """Where simulated: the time of the device."""
    answer_tokens: int = 256
    """Where simulated: length of an answer that nothing else ends."""
    verified_on: ClassVar[str | None] = None
    """Hardware that it has been run on, in words; None = not verified on hardware, which users are told."""
    requires: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Version ranges, as in `>=2.9,<3`, of `python`, `glibc`, `driver`, `sdk` and of distributions by name."""

    @classmethod
    def installed_versions(cls) -> Mapping[str, str]:
        """Return the versions of `driver` and `sdk` that are here, as far as the chip's own libraries tell them.

        Makes no device, and works where there is none. `sglk doctor` compares them with `requires`.
        """
        return {}

    @classmethod
    def diagnose(cls) -> Iterable[Finding]:
        """Yield what only this plugin can check: its libraries, its card, its environment; see `sglk doctor`.

        Makes no device, and works where nothing of the chip is installed: then it names everything that is missing.
        """
        return ()

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialised device memory; raises CapacityError when there is not enough."""

    def allocate_cache(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As `allocate`, for keys and values: memory that is held for long and read by every step."""
        return self.allocate(shape, dtype)

    @abstractmethod
    def free(self, tensor: torch.Tensor) -> None:
        """Give the memory of `tensor` back; it must not be used afterwards."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Return total and free device memory."""

    def peak_memory_bytes(self) -> int:
        """Return the most device memory in use so far; a device that keeps no record gives what is in use now."""
        memory = self.memory_info()
        return memory.total - memory.free

    def num_devices(self, ranks: int) -> int | None:
        """Return how many devices of this kind a model of so many ranks finds on this machine.

        `groups` may name those from index 0 up to it. None = not told; a wrong index then fails in the constructor.
        """
        return None

    @abstractmethod
    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Copy `src` into `dst` (same shape), between host and device or on the device, in stream order."""

    @abstractmethod
    def execute_runnable(self, runnable: Callable[[], T]) -> T:
        """Run `runnable` on the device's stream, under the settings that the device needs, and return its result."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work handed to the device is done."""

    def capture_graph(self, runnable: Callable[[], T]) -> DeviceGraph[T]:
        """Record the device work of `runnable` for `replay`, on the device's stream; comes with `graph_capture`.

        `runnable` has run once on the same tensors, so that nothing is compiled or allocated for the first time; with
        `eager_capture` it need not have, for it does its work while it is recorded. It reads its inputs from tensors
        that stay where they are, and neither reads from the device nor synchronises. What it computes on the host is
        not computed again. The memory of its result belongs to the graph, and may be written to by any later replay.
        Called within `execute_runnable`, and so is `replay`. Raises BackendError where the chip cannot, or the work
        cannot be recorded.
        """
        raise BackendError(f"backend {self.name!r} captures no graphs; set runtime.disable_cuda_graph=true")

    def process_group(self, store: "Store", rank: int, size: int, timeout: timedelta) -> ProcessGroup:
        """Join the `size` ranks of one model, which meet in `store`, through the library that `collectives` names.

        The group is not torch's default one: a process can be in several. It gives every rank the same bits; exchanges
        raise RuntimeError when a rank is gone or nothing comes for `timeout`; those that nobody waits for are an
        AsynchronousGroup's, which tells it afterwards. Raises BackendError where the chip has no such library.
        """
        raise BackendError(f"backend {self.name!r} cannot add over several devices; set runtime.tp_size=1")

    @abstractmethod
    def device_info(self) -> DeviceInfo:
        """Return what the machine calls this device."""
