"""Keys and spaces of the studies that tests run."""

from typing import Any

WINDOW = "runtime.max_running_requests"
POLICY = "runtime.schedule_policy"
DTYPE = "runtime.dtype"
DEFAULT_WINDOW = 16


TWELVE: dict[str, list[Any]] = {
    "runtime.chunked_prefill_size": [512, 1024, 2048],
    WINDOW: [8, 16],
    POLICY: ["fcfs", "lpm"],
}
"""Twelve points, the default among them."""
