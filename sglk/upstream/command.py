"""What starts an upstream engine: the composed command line and environment as one value that never changes."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sglk.config.secrets import MASK


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class UpstreamCommand:
    """A command to launch, to print or to render into a manifest; nothing in it depends on this machine's state."""

    engine: str
    """`sglang` or `vllm`."""
    version: str
    argv: tuple[str, ...]
    """The interpreter first."""
    environment: Mapping[str, str] = field(default_factory=_nothing)
    """Variables beside those that the process inherits."""
    secrets: Mapping[str, str] = field(default_factory=_nothing)
    """The same, of values that nobody may see."""
    notes: tuple[str, ...] = ()
    """Where the engine means something else by a value than sglk does."""
    url: str = ""
    """Where it will answer."""

    @property
    def variables(self) -> dict[str, str]:
        """All variables, the secret ones included."""
        return {**self.environment, **self.secrets}

    def shell(self) -> str:
        """Return the line to paste into a shell: environment first, secrets masked."""
        shown = {**self.environment, **dict.fromkeys(self.secrets, MASK)}
        settings = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
        return " ".join([*settings, shlex.join(self.argv)])
