"""Chip plugins: from a backend's name to the class that drives it."""

import importlib
import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sglk.errors import BackendError, nearest

log = logging.getLogger("sglk.plugins")

BackendFactory = Callable[..., Any]
"""Makes a DeviceBackend; the class itself in most cases."""

BACKEND_PLUGINS = "sglk.backends"
"""Entry point group of plugin distributions: `name = module:class`."""

BUILT_IN = {"cpu": "sglk.backends.cpu:CpuBackend"}

_CONTRACT = "sglk.backends.base:API_VERSION"

_registered: dict[str, BackendFactory] = {}


def register_backend(name: str, factory: BackendFactory) -> None:
    """Make `factory` the backend called `name`, from code; do it before the engine is created.

    Raises BackendError when another factory has the name already.
    """
    if _registered.get(name, factory) is not factory or name in BUILT_IN:
        raise BackendError(f"backend {name!r} is registered already; choose another name")
    _registered[name] = factory


def backend_names() -> list[str]:
    """Return the names that `load_backend` knows, without importing any of them."""
    return sorted({*BUILT_IN, *_registered, *(entry.name for entry in entry_points(group=BACKEND_PLUGINS))})


def load_backend(name: str) -> BackendFactory:
    """Import the backend called `name` and return its factory.

    Raises BackendError, with the distribution and the reason, when it is unknown, fails to import, is not there or
    was written for another version of the contract.
    """
    if name in _registered:
        factory, origin = _registered[name], "register_backend()"
    elif name in BUILT_IN:
        factory, origin = _load(EntryPoint(name, BUILT_IN[name], BACKEND_PLUGINS), "built-in"), "built-in"
    else:
        entry = _entry_point(name)
        origin = _origin(entry)
        factory = _load(entry, origin)
    _check_version(name, factory, origin)
    log.info("Backend %s loaded successfully", name)
    return factory


def _entry_point(name: str) -> EntryPoint:
    found = list(entry_points(group=BACKEND_PLUGINS))
    matches = [entry for entry in found if entry.name == name]
    if not matches:
        raise BackendError(_unknown_message(name, found))
    if len({entry.value for entry in matches}) > 1:
        owners = " and ".join(_origin(entry) for entry in matches)
        raise BackendError(f"backend {name!r} comes from {owners}; uninstall all but one")
    return matches[0]


def _unknown_message(name: str, found: list[EntryPoint]) -> str:
    plugins = [f"{entry.name} ({_origin(entry)})" for entry in found]
    known = [f"{built_in} (built-in)" for built_in in BUILT_IN]
    registered = [f"{other} (register_backend())" for other in _registered]
    return (
        f"no plugin drives backend {name!r}{nearest(name, backend_names())}"
        f" searched the entry points {BACKEND_PLUGINS!r} of this Python and register_backend();"
        f" found {', '.join(known + registered + plugins)};"
        " usual causes: the plugin is installed into another environment, its installation failed,"
        " or register_backend() runs after the engine is created"
    ).replace(f"{name!r} searched", f"{name!r}; searched")


def _origin(entry: EntryPoint) -> str:
    if entry.dist is None:
        return entry.value
    return f"{entry.dist.name} {entry.dist.version} at {entry.dist.locate_file('')}"


def _load(entry: EntryPoint, origin: str) -> BackendFactory:
    try:
        factory = entry.load()
    # A vendor's module may raise anything while it loads its libraries, and SystemExit too: name it, do not die of it.
    except (Exception, SystemExit) as error:
        raise BackendError(
            f"backend {entry.name!r} ({origin}) failed to load from {entry.value!r}: {type(error).__name__}: {error};"
            " check that its libraries fit this driver, Python and torch"
        ) from error
    if not callable(factory):
        raise BackendError(
            f"backend {entry.name!r} ({origin}): {entry.value!r} is {factory!r}, not a DeviceBackend class"
        )
    loaded: BackendFactory = factory
    return loaded


def _check_version(name: str, factory: BackendFactory, origin: str) -> None:
    module, _, attribute = _CONTRACT.partition(":")
    wanted = getattr(importlib.import_module(module), attribute)
    given = getattr(factory, "api_version", None)
    if given is not None and given != wanted:
        raise BackendError(
            f"backend {name!r} ({origin}) was written for version {given} of the DeviceBackend contract, sglk has"
            f" {wanted}; install versions that fit"
        )
