"""Which flags a version of an upstream engine has: tables made from the real parsers by `scripts/upstream_flags.py`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from packaging.version import Version

from sglk.errors import ConfigError, nearest
from sglk.upstream.flag import Flag

_FOLDER = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class FlagTable:
    """The flags of one version of one engine."""

    engine: str
    version: str
    flags: Mapping[str, Flag]
    """By their first names."""

    @cached_property
    def _names(self) -> dict[str, Flag]:
        return {name: flag for flag in self.flags.values() for name in (flag.name, *flag.aliases)}

    @property
    def title(self) -> str:
        """Engine and version in words."""
        return f"{self.engine} {self.version}"

    def find(self, name: str) -> Flag | None:
        """Return the flag of that name, in full: upstream parsers take any prefix, so that a typo passes there."""
        return self._names.get(name)

    def require(self, name: str) -> Flag:
        """Return the flag of that name; ConfigError says what this version calls it."""
        flag = self._names.get(name)
        if flag is None:
            raise ConfigError(f"{self.title} has no flag {name}{self.advice(name)}")
        if flag.deprecated is not None:
            raise ConfigError(f"{self.title} has deprecated {name}{_write(flag.deprecated)}")
        return flag

    def advice(self, name: str) -> str:
        """Return the end of a message about an unknown flag: its new name, a version that has it, or the nearest."""
        others = [flag_table(self.engine, version) for version in versions(self.engine) if version != self.version]
        known = [(table, flag) for table in others if (flag := table.find(name))]
        for _, flag in known:
            if flag.deprecated and self.find(flag.deprecated.partition("=")[0].partition("{")[0].rstrip("-")):
                return _write(flag.deprecated)
            if alias := next((each for each in (flag.name, *flag.aliases) if each in self._names), None):
                return _write(alias)
            if flag.deprecated:
                return _write(flag.deprecated)
        if known:
            return f"; {known[0][0].title} has it"
        return nearest(name, self._names) or f"; see the documentation of {self.engine}"


@cache
def flag_table(engine: str, version: str) -> FlagTable:
    """Return the table of a version that ships with sglk; ConfigError names those that do."""
    file = _FOLDER / f"{engine}-{version}.json"
    if version not in versions(engine):
        have = ", ".join(versions(engine)) or "none"
        raise ConfigError(
            f"engine.version={version}: sglk has no table of the flags of {engine} {version}; it has {have}"
        )
    content = json.loads(file.read_text(encoding="utf-8"))
    flags = {name: Flag.of(name, facts) for name, facts in content["flags"].items()}
    return FlagTable(engine, version, flags)


@cache
def versions(engine: str) -> tuple[str, ...]:
    """Return the versions of an engine whose flags are known, oldest first."""
    found = [file.name.removeprefix(f"{engine}-").removesuffix(".json") for file in _FOLDER.glob(f"{engine}-*.json")]
    return tuple(sorted(found, key=Version))


def _write(flag: str) -> str:
    return f"; write {flag}" if flag else ", and nothing has taken its place"
