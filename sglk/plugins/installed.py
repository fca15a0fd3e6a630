"""Plugins of installed distributions, read from metadata: one that is damaged hides none of the others.

`importlib.metadata.entry_points()` gives up as a whole when a single distribution has a line that it cannot read.
"""

import re
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib import metadata
from importlib.metadata import Distribution
from pathlib import Path

from sglk.plugins.plugin import Plugin

_ENTRY_POINTS = "entry_points.txt"


def installed_plugins(group: str) -> list[Plugin]:
    """Return what the distributions of this Python offer under one entry point group, by name."""
    found = dict.fromkeys(plugin for dist in metadata.distributions() for plugin in _of(dist, group))
    return sorted(found, key=lambda plugin: (plugin.name, plugin.source))


def normalised(distribution: str) -> str:
    """Return the one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _of(dist: Distribution, group: str) -> Iterator[Plugin]:
    text = _text(dist, _ENTRY_POINTS)
    if f"[{group}]" not in text.replace(" ", ""):
        return
    headers = HeaderParser().parsestr(_text(dist, "METADATA") or _text(dist, "PKG-INFO"))
    name, version = headers["Name"], headers["Version"]
    location = Path(str(dist.locate_file(""))).resolve()
    if name is not None and _is_hidden(name, location):
        return
    source = name or "a distribution without metadata"
    try:
        entries = [entry for entry in dist.entry_points if entry.group == group]
    except (TypeError, ValueError) as error:
        reason = f"its {_ENTRY_POINTS} cannot be read ({error}); reinstall or uninstall {source}"
        yield Plugin("?", group, "", source, version, location, reason)
        return
    for entry in entries:
        yield Plugin(entry.name, group, entry.value, source, version, location)


def _text(dist: Distribution, file: str) -> str:
    try:
        return dist.read_text(file) or ""
    except (OSError, UnicodeDecodeError):
        return ""


def _is_hidden(name: str, location: Path) -> bool:
    """Whether another copy of the distribution stands earlier on the path, so that its files are imported."""
    try:
        first = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return Path(str(first.locate_file(""))).resolve() != location
