"""The latest snapshots of a server, and what they say."""

from collections import deque
from collections.abc import Iterable, Mapping

from sglk.adviser.rules import Advice, advise
from sglk.adviser.snapshot import Snapshot, figures

WINDOW_S = 60.0
"""The stretch that advice is about."""

KEPT = 180
"""Snapshots that are kept: 15 minutes at one in 5 seconds."""


class History:
    """Snapshots in the order of time."""

    def __init__(self, snapshots: Iterable[Snapshot] = ()) -> None:
        self._snapshots: deque[Snapshot] = deque(snapshots, maxlen=KEPT)

    def add(self, snapshot: Snapshot) -> None:
        """Add the latest one."""
        self._snapshots.append(snapshot)

    def advice(self, facts: Mapping[str, Mapping[str, str]]) -> list[Advice]:
        """Return what the rules say about each group of `facts`, by the latest stretch of WINDOW_S."""
        if not self._snapshots:
            return []
        found = []
        for group, known in facts.items():
            now = figures(self._start_of_window(), self._snapshots[-1], group)
            found += advise(now, self._best_earlier(group), {**known, "group": group})
        return found

    def _start_of_window(self) -> Snapshot | None:
        """Return the snapshot that the latest stretch begins with; None = there is one only."""
        last = self._snapshots[-1]
        earlier = [each for each in self._snapshots if each.at_s <= last.at_s - WINDOW_S]
        return earlier[-1] if earlier else self._snapshots[0] if len(self._snapshots) > 1 else None

    def _best_earlier(self, group: str) -> dict[str, float] | None:
        """Return the figures of the stretch before the latest one with the highest throughput."""
        start = self._start_of_window()
        before = [each for each in self._snapshots if start is not None and each.at_s <= start.at_s]
        stretches = []
        for end in before:
            begins = [each for each in before if each.at_s <= end.at_s - WINDOW_S]
            if begins:
                stretches.append(figures(begins[-1], end, group))
        return max(stretches, key=lambda each: each.get("tokens_per_second", 0.0), default=None)
