"""Backends that code registers, in processes other than the one that runs that code."""

import importlib
from typing import Any

from sglk.errors import BackendError
from sglk.plugins.claims import find_backend, register_backend, registered_factory
from sglk.plugins.plugin import CODE


def address(name: str) -> str | None:
    """Return `module:attribute` of the factory that code registered as backend `name`; None where a plugin brings it.

    Raises BackendError for a factory that another process cannot import, and what `find_backend` raises.
    """
    if find_backend(name).source != CODE:
        return None
    factory = registered_factory(name)
    module, path = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module == "__main__" or not _is_at(factory, module, path):
        raise BackendError(
            f"backend {name!r} is registered by code that other processes do not run ({path or factory!r} of"
            f" {module or 'no module'}), such as those of ops that are looked at and of ranks of a model in parts; move"
            " the factory into a module of its own and register it from there"
        )
    return f"{module}:{path}"


def register_from(name: str, address: str) -> None:
    """Import what `address` returned in another process and register it here, too."""
    module, _, path = address.partition(":")
    register_backend(name, _found(module, path))


def _is_at(factory: object, module: str, path: str) -> bool:
    try:
        return _found(module, path) is factory
    except (ImportError, AttributeError, ValueError):
        return False


def _found(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found
