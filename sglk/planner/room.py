"""The memory of the devices that a replica is planned for."""

from dataclasses import dataclass

from sglk.backends.host_memory import host_memory
from sglk.backends.sim_chip import imagined
from sglk.config.groups import SIMULATED
from sglk.config.schema import ServeConfig
from sglk.engine.capacity import GIB, DeviceRoom
from sglk.errors import ConfigError

IN_MAIN_MEMORY = "cpu"
"""Backend whose devices have no memory of their own."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of one device before anything is in it, in bytes; main memory is one for all devices."""

    total: int
    free: int
    host_memory: bool
    source: str
    """Who says so."""

    def beside(self, weights: int, ranks: int) -> DeviceRoom:
        """Return what each of `ranks` finds once the weights of all are in place, as the engine does."""
        if not self.host_memory:
            return DeviceRoom(self.total, self.free - weights, False, splittable=True)
        return DeviceRoom(self.total // ranks, self.free // ranks - weights, True)

    def holds(self, weights: int, ranks: int) -> bool:
        """Return whether weights of so many bytes on each of `ranks` can be loaded at all."""
        return weights * (ranks if self.host_memory else 1) <= self.free


def room_of(config: ServeConfig) -> Room:
    """Return the memory of each device of `config`; raises ConfigError for a chip whose memory nobody states."""
    if config.backend.name == SIMULATED:
        gib = imagined(config.chip)[0].memory_gib
        assert gib is not None
        return _device(gib, f"chip {config.chip.name}" if config.chip.memory_gib else "assumed by the simulation")
    if config.backend.name == IN_MAIN_MEMORY:
        memory = host_memory()
        return Room(memory.total, memory.free, True, "the operating system")
    gib = config.chip.memory_gib or config.runtime.device_memory_gib
    if gib is None:
        raise ConfigError(
            f"chip {config.chip.name!r} states no memory to plan with; write runtime.device_memory_gib=GIB, or choose "
            "the chip of your card (`sglk chips` lists all)"
        )
    return _device(gib, f"chip {config.chip.name}" if config.chip.memory_gib else "runtime.device_memory_gib")


def _device(gib: float, source: str) -> Room:
    return Room(int(gib * GIB), int(gib * GIB), False, source)
