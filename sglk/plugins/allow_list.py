"""`SGLK_PLUGINS`: which of the plugins that are found may be used."""

import os
from collections.abc import Iterable

from sglk.errors import nearest
from sglk.plugins.installed import normalised
from sglk.plugins.plugin import Plugin

VARIABLE = "SGLK_PLUGINS"
"""Environment variable: names or distributions, separated by commas. Unset = all; empty = none but sglk's own."""


def is_set() -> bool:
    """Return whether there is a list at all."""
    return VARIABLE in os.environ


def is_allowed(plugin: Plugin) -> bool:
    """Return whether the list lets `plugin` in; sglk's own and those of code are not its business."""
    entries = _entries()
    if entries is None or plugin.distribution is None:
        return True
    return plugin.name in entries or normalised(plugin.distribution) in map(normalised, entries)


def refusal(plugin: Plugin) -> str | None:
    """Return why the list keeps `plugin` out, or None."""
    if is_allowed(plugin):
        return None
    given = os.environ[VARIABLE]
    return f"{VARIABLE}={given!r} names neither {plugin.name!r} nor {plugin.distribution!r}; add one of them to use it"


def warnings(plugins: Iterable[Plugin]) -> list[str]:
    """Return one line for each entry that is neither the name nor the distribution of one of `plugins`."""
    known = {word for plugin in plugins for word in (plugin.name, plugin.distribution) if word is not None}
    spellings = known | set(map(normalised, known))
    unknown = [entry for entry in _entries() or () if not {entry, normalised(entry)} & spellings]
    return [
        f"{VARIABLE} names {entry!r}, which no plugin or distribution is called"
        f"{nearest(entry, known) or '; `sglk plugins` lists what is found'}"
        for entry in unknown
    ]


def _entries() -> list[str] | None:
    given = os.environ.get(VARIABLE)
    return None if given is None else [entry.strip() for entry in given.split(",") if entry.strip()]
