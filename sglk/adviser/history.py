"""The latest snapshots of a server, and what they say."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from sglk.adviser.rules import Advice, advise
from sglk.adviser.snapshot import Snapshot, figures

WINDOW_S = 60.0
"""The stretch that advice is about."""

KEPT = 180
"""Snapshots that are kept: 15 minutes at one in 5 seconds."""


class History:
    """Snapshots of one process in the order of time."""

    def __init__(self, snapshots: Iterable[Snapshot] = ()) -> None:
        self._snapshots: deque[Snapshot] = deque(snapshots, maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._snapshots)

    def add(self, snapshot: Snapshot) -> None:
        """Add the latest one."""
        self._snapshots.append(snapshot)

    def advice(self, facts: Mapping[str, Mapping[str, str]], now: Snapshot | None = None) -> list[Advice]:
        """Return what the rules say about each group of `facts`, by the latest stretch of WINDOW_S, up to `now`.

        `now` itself is not kept: whoever asks often leaves no less of the past.
        """
        snapshots = list(self._snapshots) if now is None else [*self._snapshots, now]
        if not snapshots:
            return []
        begin = _begin(snapshots, len(snapshots) - 1)
        found = []
        for group, known in facts.items():
            latest = figures(snapshots[max(begin, 0) :], group)
            found += advise(latest, _best(snapshots[: begin + 1], group), {**known, "group": group})
        return found


def _begin(snapshots: Sequence[Snapshot], end: int) -> int:
    """Return where the stretch begins that ends with snapshot number `end`; -1 = the past does not reach so far."""
    return bisect_right(snapshots, snapshots[end].at_s - WINDOW_S, key=lambda each: each.at_s) - 1


def _best(before: Sequence[Snapshot], group: str) -> dict[str, float] | None:
    """Return the figures of the stretch with the highest throughput; None = no whole one is known."""
    begins = [(_begin(before, end), end) for end in range(len(before))]
    stretches = [figures(before[begin : end + 1], group) for begin, end in begins if begin >= 0]
    return max(stretches, key=lambda each: each.get("tokens_per_second", 0.0), default=None)
