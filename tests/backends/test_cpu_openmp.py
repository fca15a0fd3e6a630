"""The threads that help a thread which calls kernels."""

import threading
import time
from pathlib import Path

import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.library import kernels

TASKS = Path("/proc/self/task")

pytestmark = pytest.mark.skipif(
    isinstance(kernels(), str) or not TASKS.is_dir(), reason="there are no kernels, or nothing that lists threads"
)


def test_a_thread_leaves_no_helper_behind() -> None:
    """What OpenMP keeps for a thread that only loaded would let the engine's helpers sleep between two kernels."""
    backend = CpuBackend(num_threads=2)
    seen: dict[str, int] = {}

    def work() -> None:
        backend.execute_runnable(torch.ones(1000, 1000).exp)
        seen["helped"] = threads()
        backend.leave_thread()
        deadline_s = time.monotonic() + 10
        while threads() == seen["helped"] and time.monotonic() < deadline_s:
            time.sleep(0.001)
        seen["left"] = threads()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen["left"] == seen["helped"] - 1


def threads() -> int:
    """Return how many threads this process has."""
    return len(list(TASKS.iterdir()))
