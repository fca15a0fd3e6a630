"""Tokens per second over the last few seconds."""

import threading
from collections import deque

WINDOW_S = 5.0


class Throughput:
    """A sliding window over the tokens generated per step; written by the engine, read by any thread."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._steps: deque[tuple[float, int]] = deque()
        self._tokens = 0
        self._lock = threading.Lock()

    def add(self, now_s: float, tokens: int) -> None:
        """Count the `tokens` of a step that ended at `now_s`."""
        with self._lock:
            self._steps.append((now_s, tokens))
            self._tokens += tokens
            self._expire(now_s)

    def rate(self, now_s: float) -> float:
        """Return tokens per second over the window that ends at `now_s`."""
        with self._lock:
            self._expire(now_s)
            return self._tokens / self._window_s

    def _expire(self, now_s: float) -> None:
        while self._steps and self._steps[0][0] <= now_s - self._window_s:
            self._tokens -= self._steps.popleft()[1]
