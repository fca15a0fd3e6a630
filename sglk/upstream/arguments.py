"""A command line in the making: each flag is looked up in the version's table before it is taken."""

from collections.abc import Iterable
from typing import Any

from sglk.errors import ConfigError
from sglk.upstream.flag import Flag
from sglk.upstream.table import FlagTable


class Arguments:
    """Flags with their values, in order, each at most once."""

    def __init__(self, table: FlagTable) -> None:
        self.table = table
        self.notes: list[str] = []
        """What whoever reads the command should know."""
        self._values: dict[str, tuple[Flag, Any]] = {}
        self._keys: dict[str, str] = {}

    def set(self, name: str, value: Any, key: str) -> None:
        """Set a flag to what the setting `key` says; raises ConfigError where the version does not take it."""
        flag = self.table.require(name)
        if (problem := flag.problem(value)) is not None:
            raise ConfigError(f"{key}: {name} of {self.table.title}: {problem}")
        self._values[flag.name] = (flag, value)
        self._keys[flag.name] = key

    def note(self, text: str) -> None:
        """Say something about the command."""
        self.notes.append(text)

    def owner(self, flag: Flag) -> str | None:
        """Return the setting that has set a flag already."""
        return self._keys.get(flag.name)

    def words(self) -> Iterable[str]:
        """Yield the words of the command line."""
        for flag, value in self._values.values():
            yield from flag.words(value)
