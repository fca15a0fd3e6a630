"""A clock that jumps from one event to the next."""

import heapq
import math
from collections.abc import Callable
from itertools import count


class VirtualClock:
    """Runs what is due, in the order of time; of two things at the same moment the one that was asked for first.

    Call it for the time: components of the real service take it in place of `time.monotonic`.
    """

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def at(self, time_s: float, run: Callable[[], None]) -> None:
        """Have `run` called at `time_s`, which is now or later."""
        assert time_s >= self.now
        heapq.heappush(self._events, (time_s, next(self._order), run))

    def after(self, delay_s: float, run: Callable[[], None]) -> None:
        """Have `run` called in `delay_s` seconds, after all that is due by then and was asked for before."""
        self.at(self.now + delay_s, run)

    @property
    def next_s(self) -> float:
        """When the next thing is due; infinity where nothing is."""
        return self._events[0][0] if self._events else math.inf

    def jump(self, time_s: float) -> None:
        """Go on to `time_s`, until when nothing is due."""
        assert self.now <= time_s < self.next_s
        self.now = time_s

    def run(self) -> None:
        """Go on until nothing is due any more."""
        while self._events:
            self.now, _, run = heapq.heappop(self._events)
            run()
