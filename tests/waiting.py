"""Waiting for what other threads and processes bring about."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_s: float = 120.0, what: str = "the condition") -> None:
    """Return once `condition` holds; fail after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.002)
