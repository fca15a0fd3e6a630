"""Whether what a plugin gives is a DeviceBackend of the version that this sglk drives."""

import importlib
import inspect
from typing import Any

_CONTRACT = "sglk.backends.base"
_TABLE = "sglk.backends.capability_table"
_WORK = "sglk.backends.device_work"
"""All import torch; so not before a backend is wanted."""


def import_contract() -> Any:
    """Import the module of DeviceBackend, and torch with it."""
    return importlib.import_module(_CONTRACT)


def misfit(factory: object, *, own: bool = False) -> str | None:
    """Return why `factory` cannot make backends for this sglk, or None; `own` = it is sglk's and shares its version."""
    base = import_contract()
    if not isinstance(factory, type):
        return None if callable(factory) else f"it is {_short(factory)}, not a DeviceBackend class"
    if not issubclass(factory, base.DeviceBackend):
        return f"{factory.__qualname__} is no subclass of {_CONTRACT}.DeviceBackend"
    if inspect.isabstract(factory):
        missing = ", ".join(sorted(vars(factory)["__abstractmethods__"]))
        return f"{factory.__qualname__} lacks {missing}, which every DeviceBackend has"
    return None if own else _wrong_version(factory, base)


def unfit(made: object, *, own: bool = False) -> str | None:
    """Return why what a factory made is no backend for this sglk, or None."""
    base = import_contract()
    if not isinstance(made, base.DeviceBackend):
        return f"it made {_short(made)}, not a DeviceBackend"
    # What the engine reads of a backend and no abstract method demands.
    parts = {"name": str, "capabilities": base.Capabilities, "ops": base.OpRegistry, "device": base.torch.device}
    missing = [part for part in parts if not hasattr(made, part)]
    if missing:
        return f"{type(made).__qualname__} has no {', '.join(missing)}"
    for part, kind in parts.items():
        if not isinstance(value := getattr(made, part), kind):
            return f"{type(made).__qualname__}.{part} is {_short(value)}, not of type {kind.__name__}"
    if own:
        return None
    if (flaw := _wrong_version(type(made), base)) is not None:
        return flaw
    table, work = importlib.import_module(_TABLE), importlib.import_module(_WORK)
    flaw = table.table_flaw(made.capabilities) or work.work_flaw(made)
    return flaw and f"{type(made).__qualname__}.{flaw}"


def api_version(factory: object) -> object:
    """Return the version of the contract that a class itself or one of its bases states; None where none does."""
    base = import_contract().DeviceBackend
    if not isinstance(factory, type):
        return getattr(factory, "api_version", None)
    stating = (kind for kind in factory.__mro__ if kind is not base and "api_version" in vars(kind))
    return vars(kind)["api_version"] if (kind := next(stating, None)) is not None else None


def verified_on(factory: object) -> str | None:
    """Return the hardware that a class itself says it was run on; where its base was run proves nothing of it."""
    text = vars(factory).get("verified_on") if isinstance(factory, type) else None
    return text if isinstance(text, str) else None


def _wrong_version(kind: type, base: Any) -> str | None:
    given, wanted = api_version(kind), base.API_VERSION
    if given is None:
        return (
            f"{kind.__qualname__} does not say for which version of the DeviceBackend contract it was written; sglk has"
            f" version {wanted}, so write `api_version = {wanted}` into the class"
        )
    if type(given) is not int:
        return f"{kind.__qualname__}.api_version is {given!r}, not a whole number; sglk has version {wanted}"
    if given == wanted:
        return None
    return (
        f"it was written for version {given} of the DeviceBackend contract and sglk has version {wanted};"
        f" upgrade {'sglk' if given > wanted else 'the plugin'}"
    )


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
