"""One snapshot a second, taken once however many look, and the curves of the last minutes."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from sglk.server.journal import Journal
from sglk.server.streaming import event

logger = logging.getLogger(__name__)

EVERY_S = 1.0
KEPT = 300
"""Points of a curve: 5 minutes at one a second."""

Taken = tuple[dict[str, Any], dict[str, Any]]
"""A snapshot, and the point that it adds to the curves."""


class LiveFeed:
    """Snapshots for any number of viewers.

    A viewer that reads slowly gets the latest one when it is ready for more: nothing queues up for it.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        self.journal = Journal()
        self.viewers = 0
        """Who follow the events now."""
        self._every_s = every_s
        self._points: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._number = 0
        """Points so far."""
        self._now: dict[str, Any] | None = None
        self._encoded: dict[int, bytes] = {}
        """What viewers get now, by the number of points that are new to them: written once, however many look."""
        self._news = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def points(self) -> list[dict[str, Any]]:
        """The curves, oldest point first."""
        return list(self._points)

    def start(self, take: Callable[[], Taken]) -> None:
        """Begin to call `take`, in a thread, every second until the event loop ends; harmless when repeated."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run(take))

    def close(self) -> None:
        """Let all viewers go, with a last word."""
        self._closed = True
        self._tell()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events: first all points, then what is new; the last one says `closing`."""
        seen = None
        self.viewers += 1
        try:
            while not self._closed:
                if self._now is None or seen == self._number:
                    await self._news.wait()
                    continue
                news = self._told_after(seen)
                seen = self._number
                yield news
            yield event({"closing": True})
        finally:
            self.viewers -= 1

    def _told_after(self, seen: int | None) -> bytes:
        """Return the event for a viewer that has got the first `seen` points; None = it has just come."""
        new = 0 if seen is None else min(self._number - seen, KEPT)
        if new not in self._encoded:
            points = self.points[-new:]
            self._encoded[new] = event({"first": not new, "points": points, "now": self._now})
        return self._encoded[new]

    async def _run(self, take: Callable[[], Taken]) -> None:
        with self.journal.listening():
            while not self._closed:
                try:
                    self._now, point = await asyncio.to_thread(take)
                    self._points.append(point)
                    self._number += 1
                    self._encoded = {}
                    self._tell()
                # Whoever looks on must not go blind because one look failed.
                except Exception:
                    logger.exception("no snapshot for the dashboard; the next one may do")
                await asyncio.sleep(self._every_s)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
