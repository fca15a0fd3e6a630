"""How long a call of an op takes on a device."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from sglk.backends.base import DeviceBackend
from sglk.operators.results import Timing

BLOCK_S = 1e-3
"""Calls are timed in blocks of at least so long, so that waiting for the device counts for little."""

FEWEST, MOST = 3, 1000
"""Blocks that are timed."""


def time_calls(
    function: Callable[..., Any], copies: Sequence[Sequence[Any]], backend: DeviceBackend, seconds: float
) -> Timing:
    """Call `function` for about `seconds` with each of `copies` of its arguments in turn.

    With enough of them weights come from memory, as in a model, and not from a cache that a call before has filled.
    """
    _block(function, copies, backend, len(copies))
    once_s = max(_block(function, copies, backend, 1), 1e-7)
    calls = max(1, round(BLOCK_S / once_s))
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < FEWEST or (time.perf_counter() < end and len(samples) < MOST):
        samples.append(_block(function, copies, backend, calls) / calls)
    return Timing(min(samples), statistics.median(samples), len(samples), calls)


def simulated_time(function: Callable[..., Any], arguments: Sequence[Any], backend: DeviceBackend) -> Timing:
    """Return what one call takes on a simulated device's own clock; nobody waits for it."""
    assert backend.clock is not None
    before_s = backend.clock.busy_s
    backend.execute_runnable(lambda: function(*arguments))
    took_s = backend.clock.busy_s - before_s
    return Timing(took_s, took_s, 1, 1)


def _block(function: Callable[..., Any], copies: Sequence[Sequence[Any]], backend: DeviceBackend, calls: int) -> float:
    def run() -> None:
        for call in range(calls):
            function(*copies[call % len(copies)])

    backend.synchronize()
    start_s = time.perf_counter()
    backend.execute_runnable(run)
    backend.synchronize()
    return time.perf_counter() - start_s
