"""What somebody offers to sglk, as its metadata says it, before anything of it is imported."""

import re
from dataclasses import dataclass
from pathlib import Path

BACKENDS = "sglk.backends"
"""Entry point group of backends: `name = module:class`."""
CONF = "sglk.conf"
"""Entry point group of distributions that carry a `conf/` folder: `name = package`."""

BUILT_IN = "built-in"
CODE = "register_backend()"

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_PATH = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_VALUE = re.compile(rf"(?P<module>{_PATH})(?:\s*:\s*(?P<attribute>{_PATH}))?\s*(?:\[.*\])?")
_RESERVED = {"auto": "it means the backend that the chip names"}


@dataclass(frozen=True)
class Plugin:
    """One backend or `conf` folder, and who offers it."""

    name: str
    group: str
    value: str
    """`module:attribute`; a package for a `conf` folder; the factory's name for one of code."""
    source: str
    """BUILT_IN, CODE or the name of a distribution."""
    version: str | None = None
    location: Path | None = None
    """Folder that the distribution is installed in."""
    unreadable: str | None = None
    """Why its metadata says nothing that can be used."""

    @property
    def distribution(self) -> str | None:
        """The distribution that brings it; None for sglk's own and for code."""
        return None if self.source in (BUILT_IN, CODE) else self.source

    @property
    def origin(self) -> str:
        """Who offers it, for messages: `dummy-chip 1.2 at /usr/lib/python3/dist-packages`."""
        if self.distribution is None:
            return self.source
        return f"{self.source} {self.version or 'of unknown version'} at {self.location}"

    @property
    def module(self) -> str:
        """The module to import; only where `flaw` finds nothing."""
        return self._parts()[0]

    @property
    def attribute(self) -> str:
        """Dotted path of the object in `module`, empty when the value names a module alone."""
        return self._parts()[1]

    def flaw(self) -> str | None:
        """Return what is wrong with name or value as they are written, or None."""
        if self.unreadable is not None:
            return self.unreadable
        if (why := name_flaw(self.name)) is not None:
            return why
        match = _VALUE.fullmatch(self.value.strip())
        if self.source != CODE and (match is None or (self.group == BACKENDS and match["attribute"] is None)):
            wanted = "module:class" if self.group == BACKENDS else "package"
            return f"its entry point {self.value!r} is not of the form {wanted}"
        return None

    def _parts(self) -> tuple[str, str]:
        match = _VALUE.fullmatch(self.value.strip())
        assert match is not None, f"{self.value!r} was not checked"
        return match["module"], match["attribute"] or ""


def name_flaw(name: str) -> str | None:
    """Return why nobody could choose a plugin of that name on a command line, or None."""
    if name in _RESERVED:
        return f"no plugin can be called {name!r}: {_RESERVED[name]}"
    if not _NAME.fullmatch(name):
        return f"{name!r} is no name for a plugin; it is of letters, digits, `_`, `-` and `.`"
    return None
