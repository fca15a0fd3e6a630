"""The few flags that every command has; everything else on a command line is `key=value`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sglk.errors import ConfigError


@dataclass
class CommonFlags:
    """What was asked for, and the words that are left."""

    help: bool = False
    debug: bool = False
    """Show the traceback of an error; `sglk.cli` acts on it."""
    config_dir: str | None = None
    """Folder with configuration files of the user."""
    switches: set[str] = field(default_factory=set)
    """Flags of the command itself that were given, such as `--json`."""
    arguments: list[str] = field(default_factory=list)


def common_flags(arguments: Sequence[str], switches: Sequence[str] = ()) -> CommonFlags:
    """Take `--help`, `--debug`, `--config-dir DIR` and the command's own `switches` out of `arguments`."""
    flags = CommonFlags()
    words = iter(arguments)
    for word in words:
        if word in ("--help", "-h"):
            flags.help = True
        elif word == "--debug":
            flags.debug = True
        elif word == "--config-dir" or word.startswith("--config-dir="):
            flags.config_dir = word.partition("=")[2] if "=" in word else next(words, None)
            if not flags.config_dir:
                raise ConfigError("--config-dir needs a folder, such as --config-dir ./conf")
        elif word in switches:
            flags.switches.add(word)
        else:
            flags.arguments.append(word)
    return flags
