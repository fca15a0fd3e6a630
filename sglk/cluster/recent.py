"""What a group's requests were like lately: the figures that a canary is judged by."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PERCENTILES = (50, 90, 99)

MAX_ENDS = 20_000
"""Ends that are remembered at most, the latest ones."""


@dataclass(slots=True)
class End:
    """How one request ended, with its latencies in seconds; None where it has none."""

    at_s: float
    failed: bool
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class Recent:
    """The latest requests of one group. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: deque[End] = deque(maxlen=MAX_ENDS)

    def add(self, end: End) -> None:
        """Note the end of a request; requests that the client gave up or got wrong do not belong here."""
        with self._lock:
            self._ends.append(end)

    def figures(self, window_s: float) -> dict[str, float]:
        """Return `requests`, `error_rate` (0 to 1) and `ttft_p50` ... `e2e_p99` (seconds) of the last `window_s`.

        Figures without a value are absent: without requests there is only `requests`.
        """
        since = self._clock() - window_s
        with self._lock:
            ends = [end for end in self._ends if end.at_s > since]
        figures = {"requests": float(len(ends))}
        if ends:
            figures["error_rate"] = sum(end.failed for end in ends) / len(ends)
        for name in ("ttft", "tpot", "e2e"):
            values = sorted(value for end in ends if (value := getattr(end, f"{name}_s")) is not None)
            if values:
                figures |= {f"{name}_p{share}": percentile(values, share) for share in PERCENTILES}
        return figures


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the `share` per cent percentile of `ordered` values, between neighbours in proportion."""
    position = (len(ordered) - 1) * share / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
