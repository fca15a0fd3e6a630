"""Whether a plugin's device does its work as DeviceBackend says, tried with a few numbers before a model needs it."""

from collections.abc import Callable
from numbers import Real

import torch

from sglk.backends.base import DeviceBackend, DeviceInfo, MemoryInfo
from sglk.backends.dtypes import TORCH_DTYPES
from sglk.errors import CapacityError, SglkError, is_out_of_memory

_SHAPE = (2, 3)


def work_flaw(backend: DeviceBackend) -> str | None:
    """Return the first method that does not what it is there for, and what it does, or None.

    Raises CapacityError where other work leaves no room for a few numbers, and what is a SglkError of the plugin's own.
    """
    return next(filter(None, (_flaw(method, check, backend) for method, check in _CHECKS.items())), None)


def copy_flaw(backend: DeviceBackend) -> str | None:
    """Return what comes of a few numbers on their way to the device and back, or None; raises what `work_flaw` does."""
    return _flaw("copy()", _copies, backend)


def _flaw(method: str, check: Callable[[DeviceBackend], str | None], backend: DeviceBackend) -> str | None:
    try:
        flaw = check(backend)
    except (SglkError, KeyboardInterrupt):
        raise
    # A vendor's library may raise anything.
    except BaseException as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        if is_out_of_memory(error):
            raise CapacityError(
                f"the device of backend {backend.name!r} has no memory left for six numbers: {told}; end what holds it,"
                " or take another device"
            ) from error
        flaw = f"raises {told}"
    return flaw and f"{method} {flaw}"


def _memory(backend: DeviceBackend) -> str | None:
    found = backend.memory_info()
    if isinstance(found, MemoryInfo) and all(isinstance(size, Real) for size in (found.free, found.total)):
        return None if 0 <= found.free <= found.total else f"returns {found}, of which more is free than there is"
    return f"returns {found!r}, not a MemoryInfo of numbers of bytes"


def _info(backend: DeviceBackend) -> str | None:
    found = backend.device_info()
    return None if isinstance(found, DeviceInfo) and isinstance(found.name, str) else f"returns {found!r}, not a name"


def _number(backend: DeviceBackend) -> str | None:
    found = backend.num_devices(1)
    if found is None or (type(found) is int and found > 0):
        return None
    return f"returns {found!r}, not a number above 0, nor None"


def _execution(backend: DeviceBackend) -> str | None:
    found = backend.execute_runnable(lambda: _SHAPE)
    return None if isinstance(found, tuple) and found == _SHAPE else f"returns {found!r}, not what its runnable returns"


def _allocation(backend: DeviceBackend) -> str | None:
    dtype = TORCH_DTYPES[backend.capabilities.default_dtype]
    found = backend.allocate(_SHAPE, dtype)
    if not isinstance(found, torch.Tensor):
        return f"returns {found!r}, not a tensor"
    given, wanted = (found.dtype, list(found.shape), found.device.type), (dtype, list(_SHAPE), backend.device.type)
    backend.free(found)
    if given == wanted:
        return None
    return "returns {} {} on {} where {} {} on {} was asked for".format(*given, *wanted)


def _copies(backend: DeviceBackend) -> str | None:
    dtype = TORCH_DTYPES[backend.capabilities.default_dtype]
    sent, back = torch.arange(6).reshape(_SHAPE).to(dtype), torch.zeros(_SHAPE, dtype=dtype)
    there = backend.allocate(_SHAPE, dtype)
    try:
        backend.copy(sent, there)
        backend.copy(there, back)
        backend.synchronize()
    finally:
        backend.free(there)
    same = backend.simulated or torch.equal(sent, back)
    return None if same else f"to the device and back makes {back.tolist()} of {sent.tolist()}"


_CHECKS: dict[str, Callable[[DeviceBackend], str | None]] = {
    "memory_info()": _memory,
    "device_info()": _info,
    "num_devices(1)": _number,
    "execute_runnable()": _execution,
    "allocate()": _allocation,
    "copy()": _copies,
}
