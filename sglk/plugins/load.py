"""From a backend's name to the class that drives it, and to the backend that the class makes."""

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from sglk.errors import BackendError, SglkError
from sglk.plugins.causes import cause, hiding_place
from sglk.plugins.claims import BackendFactory, find_backend, registered_factory
from sglk.plugins.containment import output_on_stderr, settings_kept
from sglk.plugins.contract import import_contract, misfit, unfit
from sglk.plugins.plugin import BUILT_IN, CODE, Plugin

log = logging.getLogger("sglk.plugins")

_loading = threading.local()


def load_backend(name: str) -> BackendFactory:
    """Import the backend called `name` and return its factory.

    Raises BackendError, with the distribution and the root cause, when it is unknown or refused, fails to import, is
    not there or was written for another version of the contract.
    """
    return _load(find_backend(name))


def create_backend(name: str, **keywords: Any) -> Any:
    """Load the backend called `name` and return the DeviceBackend that it makes from `keywords`.

    Raises what `load_backend` raises, any SglkError of the plugin's own, and BackendError for everything else that goes
    wrong in it.
    """
    plugin = find_backend(name)
    factory, own = _load(plugin), plugin.source == BUILT_IN
    with nullcontext() if own else output_on_stderr():
        try:
            made = factory(**keywords)
        except (SglkError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise BackendError(f"backend {name!r} ({plugin.origin}) failed to start: {cause(error, plugin)}") from error
        why = unfit(made, own=own)
    if why is not None:
        raise BackendError(f"backend {name!r} ({plugin.origin}) is refused: {why}")
    log.info("Backend %s loaded successfully", name)
    return made


def imported(plugin: Plugin) -> BackendFactory:
    """Import what `plugin` names; may raise whatever a vendor's module raises, SystemExit too."""
    if plugin.source == CODE:
        return registered_factory(plugin.name)
    with _not_within_itself(plugin):
        found: Any = importlib.import_module(plugin.module)
    for name in plugin.attribute.split("."):
        found = getattr(found, name)
    factory: BackendFactory = found
    return factory


def _load(plugin: Plugin) -> BackendFactory:
    where = f"backend {plugin.name!r} ({plugin.origin})"
    if plugin.distribution is not None:
        # The last words of a process that the plugin's libraries kill.
        log.info("loading %s from %s", where, plugin.value)
    try:
        factory = imported(plugin) if plugin.distribution is None else _contained(plugin, where)
        why = misfit(factory, own=plugin.source == BUILT_IN)
    except KeyboardInterrupt:
        raise
    # A vendor's module may raise anything as it loads its libraries, SystemExit too, and what a panic in Rust becomes,
    # which is no Exception: name it, do not die of it.
    except BaseException as error:
        raise BackendError(f"{where} failed to load from {plugin.value!r}: {cause(error, plugin)}") from error
    if why is not None:
        raise BackendError(f"{where}: {plugin.value!r} is refused: {why}")
    if plugin.source != CODE and (hider := hiding_place(plugin)) is not None:
        log.warning("%s is imported from %s, not from where it is installed", where, hider)
    return factory


def _contained(plugin: Plugin, where: str) -> BackendFactory:
    # torch first: what it changes is nobody's fault.
    import_contract()
    with settings_kept(where), output_on_stderr():
        return imported(plugin)


@contextmanager
def _not_within_itself(plugin: Plugin) -> Iterator[None]:
    """Refuse to import a module that, while this thread imports it, asks for its own backend."""
    stack: list[Plugin] = _loading.__dict__.setdefault("stack", [])
    if plugin in stack:
        raise BackendError(
            f"module {plugin.module!r} asks for backend {plugin.name!r}, its own, while it is being imported;"
            " let it ask from inside a function"
        )
    stack.append(plugin)
    try:
        yield
    finally:
        stack.pop()
