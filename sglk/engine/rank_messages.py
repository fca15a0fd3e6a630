"""What the engine's process and the processes of the other ranks tell each other. Needs no torch."""

from dataclasses import dataclass
from typing import Any

from sglk.config.schema import ServeConfig
from sglk.errors import BackendError, CapacityError, ConfigError, ModelLoadError, SglkError


class RankError(SglkError):
    """A rank failed in a way that has no class of its own here; all ranks are at the same place and go on."""


KINDS: dict[str, type[SglkError]] = {
    kind.__name__: kind for kind in (BackendError, CapacityError, ConfigError, ModelLoadError)
}
"""Errors that keep their class on the way."""


@dataclass(frozen=True, slots=True)
class Load:
    """First message: load the part of rank `rank` of `config`'s model. The answer has no value."""

    config: ServeConfig
    rank: int
    factory: str | None = None
    """Where code registered the backend: `module:attribute` of what makes it; None = a plugin brings it."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the rank's `RankRunner`."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in words."""

    kind: str
    message: str
    lost: bool = False
    """Whether the ranks have lost each other."""

    def error(self, rank: int) -> SglkError:
        """Return the exception to raise in the engine's process."""
        return KINDS.get(self.kind, RankError)(f"rank {rank}: {self.message}")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one message."""

    value: Any = None
    failure: Failure | None = None
    peak_memory_bytes: int = 0
    """The most memory that the rank's device has held."""
