"""Ops that compute nothing: each takes the time of its work and returns tensors of the right shape without content.

Letters as in `reference.py`; also C chosen experts or likeliest ids.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sglk.backends.constraints import Constraint
from sglk.backends.op_results import RESULTS, Result
from sglk.backends.ops import Denial, Fallback, Op, OpRegistry, P, R
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.rows import PagedRows
from sglk.backends.sim_clock import DeviceClock
from sglk.backends.sim_rates import Rates
from sglk.backends.work import Work, work_of

PROVIDER = "sim"


class SimOps(OpRegistry):
    """Every op, within the demands that a chip declares; where they are not met, the time of the reference."""

    def __init__(
        self,
        clock: DeviceClock,
        rates: Rates,
        limits: Mapping[str, Sequence[Constraint]],
        fallback: Fallback = "warn",
        deny: Sequence[Denial] = (),
    ) -> None:
        super().__init__(fallback, deny)
        self._clock = clock
        self._rates = rates
        for op, result in RESULTS.items():
            self.register(op, PROVIDER, timed(op, result, rates.op_s, clock), *limits.get(op.name, ()))

    def reference(self, op: Op[P, R]) -> Callable[P, R]:
        """Return an op that takes as long as the reference would."""
        return timed(op, RESULTS[op], self._rates.fallback_s, self._clock)


def timed(op: Op[P, R], result: Result, seconds: Callable[[Work], float], clock: DeviceClock) -> Callable[P, R]:
    """Return an implementation of `op` that takes `seconds` of its work on the clock and returns `result`.

    The time of a shape is worked out once: a step calls an op once a layer, and layers are alike.
    """
    known: dict[Hashable, float] = {}
    of_rows: WeakKeyDictionary[PagedRows, dict[Hashable, float]] = WeakKeyDictionary()

    def run(*args: Any, **kwargs: Any) -> Any:
        times, shapes = known, list[Hashable](kwargs)
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, PagedRows):
                # Every step has rows of its own.
                times = of_rows.setdefault(arg, {})
            else:
                shapes.append(_shape(arg))
        key = tuple(shapes)
        if key not in times:
            times[key] = seconds(work_of(op.name, *args, **kwargs))
        clock.charge(times[key])
        return result(*args, **kwargs)

    return run


def _shape(arg: Any) -> Hashable:
    """Return all of an argument that its work depends on."""
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.dtype
    if isinstance(arg, QuantisedMatrix):
        return arg.values.shape, arg.scales_OG.shape, arg.zeros_OG is None
    return arg if isinstance(arg, int | float | str) else arg is None
