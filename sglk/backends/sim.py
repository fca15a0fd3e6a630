"""Any chip, imagined: memory and limits as its file declares them, time as its peak figures give it, and no result."""

import logging
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from sglk.backends.base import Capabilities, DeviceBackend, DeviceInfo, MemoryInfo
from sglk.backends.collectives import ProcessGroup
from sglk.backends.op_limits import declared_limits
from sglk.backends.ops import Denial, Fallback
from sglk.backends.sim_chip import imagined
from sglk.backends.sim_clock import DeviceClock
from sglk.backends.sim_memory import GIB, META, DeviceMemory
from sglk.backends.sim_ops import SimOps
from sglk.backends.sim_rates import (
    BANDWIDTH_EFFICIENCY,
    COMPUTE_EFFICIENCY,
    LAUNCH_US,
    Efficiency,
    Link,
    rates_of,
)
from sglk.config.quantization import schemes_of
from sglk.config.schema import ChipConfig
from sglk.errors import BackendError, ConfigError, nearest

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

OPTIONS = {
    "speed": 1.0,
    "answer_tokens": 256,
    "bandwidth_efficiency": BANDWIDTH_EFFICIENCY,
    "compute_efficiency": COMPUTE_EFFICIENCY,
    "launch_us": LAUNCH_US,
}
"""Keys of `backend.options` and their defaults; see conf/backend/sim.yaml."""


class SimBackend(DeviceBackend):
    """One device of `chip`, whose tensors have no content (torch's meta device).

    Everything above it is real: scheduler, caches, memory plan, server. Ops take the time of their work (`work_of`) on
    the device's clock, and the host waits for it where it would wait for the chip. One process stands for all ranks of
    a model: they do the same at the same time.
    """

    name = "sim"
    simulated = True
    asynchronous = True
    device = META
    clock: DeviceClock

    def __init__(
        self,
        *,
        chip: ChipConfig | None = None,
        index: int = 0,
        num_threads: int | None = None,
        fallback: Fallback = "warn",
        deny: Sequence[Denial] = (),
        **options: Any,
    ) -> None:
        if chip is None:
            raise BackendError("the sim backend imitates a chip and was told none; give its description as `chip`")
        given = _checked(options)
        self.chip, assumed = imagined(chip)
        self.assumed = ", ".join(assumed)
        """Figures that the chip's file lacks."""
        if assumed:
            logger.warning("the file of chip %r lacks figures; assuming %s", chip.name, self.assumed)
        self.answer_tokens = int(given["answer_tokens"])
        self.capabilities = _capabilities(self.chip)
        self.clock = DeviceClock(given["speed"])
        shares = Efficiency(given["bandwidth_efficiency"], given["compute_efficiency"], given["launch_us"])
        self.rates = rates_of(self.chip, shares)
        assert self.chip.memory_gib is not None
        self.memory = DeviceMemory(int(self.chip.memory_gib * GIB), f"the simulated {chip.title}")
        self.ops = SimOps(self.clock, self.rates, declared_limits(chip), fallback, deny)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor without content, accounted for as the chip's memory."""
        return self.memory.allocate(shape, dtype)

    def free(self, tensor: torch.Tensor) -> None:
        """Take the tensor out of the account."""
        self.memory.release(tensor)

    def memory_info(self) -> MemoryInfo:
        """Return the chip's memory, and what of it is not allocated."""
        return MemoryInfo(self.memory.total, self.memory.free_bytes)

    def peak_memory_bytes(self) -> int:
        """Return the most memory allocated so far."""
        return self.memory.peak

    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Check that the shapes fit; on the host, what comes from the device is zeros."""
        dst.copy_(torch.zeros((), dtype=src.dtype).expand(src.shape) if src.is_meta and not dst.is_meta else src)

    def execute_runnable(self, runnable: Callable[[], T]) -> T:
        """Run `runnable`, which hands its ops to the clock."""
        with torch.inference_mode():
            return runnable()

    def synchronize(self) -> None:
        """Wait until the clock has passed the end of all work."""
        self.clock.wait()

    def process_group(self, store: "Store", rank: int, size: int, timeout: timedelta) -> ProcessGroup:
        """Return sums that take the time of a ring of `size` chips; nobody is met."""
        return SimSums(self.clock, self.rates.link, size)

    def device_info(self) -> DeviceInfo:
        """Return the chip's name, and that it is simulated, with all that was assumed."""
        return DeviceInfo(
            name=f"{self.chip.title} (simulated)",
            sdk=f"torch {torch.__version__}",
            details={"speed": f"{self.clock.speed:g}"} | ({"assumed": self.assumed} if self.assumed else {}),
        )


class SimSums:
    """The ProcessGroup of one rank that stands for all."""

    def __init__(self, clock: DeviceClock, link: Link, ranks: int) -> None:
        self._clock = clock
        self._link = link
        self._ranks = ranks

    def allreduce(self, tensors: list[torch.Tensor]) -> "SimSums":
        """Take the time of the sum; every rank brings the same."""
        self._clock.charge(sum(self._link.allreduce_s(tensor.nbytes, self._ranks) for tensor in tensors))
        return self

    def allgather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor]) -> "SimSums":
        """Take the time of bringing all parts to every rank."""
        size = sum(tensor.nbytes for tensors in output_tensors for tensor in tensors)
        self._clock.charge(self._link.allgather_s(size, self._ranks))
        return self

    def wait(self) -> None:
        """Return at once: what follows is queued behind the exchange."""


def _capabilities(chip: ChipConfig) -> Capabilities:
    return Capabilities(
        dtypes=frozenset(chip.dtypes),
        # `auto` is the compute dtype, whether or not it may be asked for by name.
        kv_cache_dtypes=frozenset({*chip.kv_cache_dtypes, *chip.dtypes}),
        quantization=schemes_of(chip.quantization),
        page_sizes=tuple(chip.page_sizes),
        default_dtype=chip.dtypes[0],
        collectives="simulated",
    )


def _checked(options: dict[str, Any]) -> dict[str, float]:
    """Return all options; raises ConfigError for an unknown one and for one out of its range."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise ConfigError(
                f"backend.options: the sim backend has no option {name!r}{nearest(name, OPTIONS) or ';'} "
                f"it takes {', '.join(OPTIONS)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ConfigError(f"backend.options.{name}={value!r} is not a number from 0 up")
        if name.endswith("efficiency") and not 0 < value <= 1:
            raise ConfigError(f"backend.options.{name}={value!r} is not a share above 0 and up to 1")
    given = {**OPTIONS, **options}
    if given["answer_tokens"] != int(given["answer_tokens"]) or given["answer_tokens"] < 1:
        raise ConfigError(f"backend.options.answer_tokens={given['answer_tokens']!r} is not a whole number from 1 up")
    return given
