"""Installed distributions, looked up in the folders that a machine's Python imports from."""

from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path

from sglk.doctor.machine import Machine
from sglk.plugins.installed import installed_plugins, normalised
from sglk.plugins.plugin import BACKENDS


def named(machine: Machine, name: str) -> Distribution | None:
    """Return the distribution that an import would reach, None where it is not installed."""
    found = distributions(name=name, path=list(machine.search))
    return next((copy for copy in found if normalised(header(copy, "Name")) == normalised(name)), None)


def header(found: Distribution, key: str) -> str:
    """Return a line of a distribution's metadata; empty where there is none, or no metadata at all."""
    try:
        text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    except (OSError, UnicodeDecodeError):
        return ""
    return HeaderParser().parsestr(text)[key] or ""


def located(found: Distribution) -> str:
    """Return the folder that a distribution is installed in."""
    return str(found.locate_file(""))


def plugin_modules() -> list[str]:
    """Return the modules of the backends that distributions offer, by their first name."""
    return sorted({name for name, _ in _plugin_places()})


def plugin_folders(module: str) -> list[Path]:
    """Return where the distributions lie that offer backends of `module`, one of `plugin_modules`."""
    return [folder for name, folder in _plugin_places() if name == module and folder is not None]


def _plugin_places() -> list[tuple[str, Path | None]]:
    plugins = [plugin for plugin in installed_plugins(BACKENDS) if plugin.flaw() is None]
    return [(plugin.module.partition(".")[0], plugin.location) for plugin in plugins]
