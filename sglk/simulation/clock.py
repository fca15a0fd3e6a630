"""A clock that jumps from one event to the next."""

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count

_Event = tuple[float, int, Callable[[], None]]


class VirtualClock:
    """Runs what is due, in the order of time; of two things at the same moment the one that was asked for first.

    Call it for the time: components of the real service take it in place of `time.monotonic`.
    """

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self._order = count()
        self._events: list[_Event] = []
        """A heap."""
        self._later: deque[_Event] = deque()
        """Those that came in the order of time, as time limits do: where many wait, the heap would be slow."""

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def at(self, time_s: float, run: Callable[[], None]) -> None:
        """Have `run` called at `time_s`, which is now or later."""
        assert time_s >= self.now
        event = time_s, next(self._order), run
        if not self._later or time_s >= self._later[-1][0]:
            self._later.append(event)
        else:
            heapq.heappush(self._events, event)

    def after(self, delay_s: float, run: Callable[[], None]) -> None:
        """Have `run` called in `delay_s` seconds, after all that is due by then and was asked for before."""
        self.at(self.now + delay_s, run)

    @property
    def next_s(self) -> float:
        """When the next thing is due; infinity where nothing is."""
        soonest = self._events[0][0] if self._events else math.inf
        return min(soonest, self._later[0][0]) if self._later else soonest

    def jump(self, time_s: float) -> None:
        """Go on to `time_s`, until when nothing is due."""
        assert self.now <= time_s < self.next_s
        self.now = time_s

    def run_next(self) -> None:
        """Go on to the next thing that is due; there is one."""
        events, later = self._events, self._later
        if not events or (later and later[0] < events[0]):
            self.now, _, run = later.popleft()
        else:
            self.now, _, run = heapq.heappop(events)
        run()

    def run(self) -> None:
        """Go on until nothing is due any more."""
        while self._events or self._later:
            self.run_next()
