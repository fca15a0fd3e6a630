"""Which share of the latest requests a group was really sent, whatever the weights say."""

import time
from collections import deque
from collections.abc import Callable, Mapping

WINDOW_S = 60
"""Over which picks are counted, in whole seconds."""


class RecentPicks:
    """The picks of one group in the last WINDOW_S. Not thread-safe to `add`: the router's lock guards it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[tuple[int, int]] = deque(maxlen=WINDOW_S)
        """Seconds that saw a pick, and how many."""

    def add(self) -> None:
        """Count a pick made now."""
        now = int(self._clock())
        if self._seconds and self._seconds[-1][0] == now:
            self._seconds[-1] = (now, self._seconds[-1][1] + 1)
        else:
            self._seconds.append((now, 1))

    @property
    def count(self) -> int:
        """Picks in the last WINDOW_S."""
        since = int(self._clock()) - WINDOW_S
        return sum(count for second, count in self._seconds.copy() if second > since)


def shares_of(counts: Mapping[str, int]) -> dict[str, float | None]:
    """Return the share of all, 0 to 1, that each name has; None for all of them while there are none."""
    total = sum(counts.values())
    return {name: count / total if total else None for name, count in counts.items()}
