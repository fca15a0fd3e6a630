"""Every backend that somebody offers, and which of those offers stand."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sglk import __version__
from sglk.errors import BackendError, nearest
from sglk.plugins import allow_list
from sglk.plugins.installed import installed_plugins
from sglk.plugins.plugin import BACKENDS, BUILT_IN, CODE, CONF, Plugin, name_flaw

BackendFactory = Callable[..., Any]
"""Makes a DeviceBackend; the class itself in most cases."""

BUILT_IN_BACKENDS = {
    "cpu": "sglk.backends.cpu:CpuBackend",
    "cuda": "sglk.backends.cuda:CudaBackend",
    "kunlun": "sglk.backends.kunlun:KunlunBackend",
    "sim": "sglk.backends.sim:SimBackend",
}
"""Backends of sglk itself: name -> `module:class`."""

_registered: dict[str, BackendFactory] = {}


def register_backend(name: str, factory: BackendFactory) -> None:
    """Make `factory` the backend called `name`, from code; do it before the engine is created.

    Raises BackendError for a name that is taken or cannot be typed, and for what cannot be called.
    """
    if (flaw := name_flaw(name)) is not None:
        raise BackendError(flaw)
    if not callable(factory):
        raise BackendError(f"register_backend({name!r}, {factory!r}): the second argument is no DeviceBackend class")
    if _registered.get(name, factory) is not factory or name in BUILT_IN_BACKENDS:
        raise BackendError(f"backend {name!r} is registered already; choose another name")
    _registered[name] = factory


def registered_factory(name: str) -> BackendFactory:
    """Return what `register_backend` was given under `name`."""
    return _registered[name]


def backend_plugins() -> list[Plugin]:
    """Return every offer of a backend: sglk's own, those of code, those of installed distributions."""
    own = [Plugin(name, BACKENDS, value, BUILT_IN, __version__) for name, value in BUILT_IN_BACKENDS.items()]
    installed = installed_plugins(BACKENDS)
    offered = {(plugin.name, id(_imported(plugin))) for plugin in installed}
    # A module may register what its entry point names too; that is one offer.
    code = [
        Plugin(name, BACKENDS, getattr(factory, "__qualname__", repr(factory)), CODE)
        for name, factory in _registered.items()
        if (name, id(factory)) not in offered
    ]
    return own + code + installed


def backend_names() -> list[str]:
    """Return the names under which a backend is offered, without importing any of them."""
    return sorted({plugin.name for plugin in backend_plugins() if plugin.unreadable is None})


def refusal(plugin: Plugin, plugins: Sequence[Plugin]) -> str | None:
    """Return why `plugin`, one of `plugins`, is not used although it is found, or None."""
    flaw = plugin.flaw() or allow_list.refusal(plugin)
    if flaw is not None:
        return flaw
    claimants = [other for other in plugins if other.name == plugin.name and allow_list.is_allowed(other)]
    if len(claimants) == 1:
        return None
    removable = [other.source for other in claimants if other.distribution is not None]
    way_out = f"uninstall {' or '.join(dict.fromkeys(removable))}, or leave it out of {allow_list.VARIABLE}"
    return (
        f"{' and '.join(other.origin for other in claimants)} both offer a backend {plugin.name!r};"
        f" {way_out if removable else 'register it under another name'}"
    )


def find_backend(name: str) -> Plugin:
    """Return the one offer of a backend called `name`; raises BackendError when there is none, or none that stands."""
    plugins = backend_plugins()
    offers = [plugin for plugin in plugins if plugin.name == name and plugin.unreadable is None]
    if not offers:
        raise BackendError(unknown_backend(name))
    standing = [plugin for plugin in offers if refusal(plugin, plugins) is None]
    if not standing:
        reasons = dict.fromkeys(str(refusal(plugin, plugins)) for plugin in offers)
        origins = "" if len(offers) > 1 else f" ({offers[0].origin})"
        raise BackendError(f"backend {name!r}{origins} is refused: {'; '.join(reasons)}")
    return standing[0]


def unknown_backend(name: str, options: Iterable[str] = ()) -> str:
    """Return what to tell a user who names a backend that nobody offers; `options` are words that would do as well."""
    plugins = backend_plugins()
    found = ", ".join(f"{plugin.name} ({plugin.origin})" for plugin in plugins)
    hint = nearest(name, [*backend_names(), *options]) or ";"
    unknown = "".join(f"; {line}" for line in plugin_warnings())
    return (
        f"no plugin drives backend {name!r}{hint} searched the entry points {BACKENDS!r} of {sys.executable} and"
        f" register_backend(); found {found}; usual causes: the plugin is installed into another environment, its"
        " installation failed, or register_backend() runs after the engine is created; backend=sim rehearses without a"
        f" plugin{unknown}"
    )


def plugin_warnings() -> list[str]:
    """Return one line for each entry of `SGLK_PLUGINS` that nothing which is found answers to."""
    if not allow_list.is_set():
        return []
    return allow_list.warnings([*backend_plugins(), *installed_plugins(CONF)])


def _imported(plugin: Plugin) -> object:
    """What the entry point names, where its module is imported already."""
    if plugin.flaw() is not None:
        return plugin
    found: object = sys.modules.get(plugin.module, plugin)
    for name in plugin.attribute.split("."):
        found = getattr(found, name, plugin)
    return found
