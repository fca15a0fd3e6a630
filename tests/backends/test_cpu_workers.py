"""The pool of workers that kernels share their work out to."""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sglk.backends.cpu_kernels import library
from sglk.backends.cpu_kernels.compiler import KernelsMissing, find_compiler

COUNTS = (0, 1, 2, 7, 64, 65, 1000, 70_000)
CALLERS = 20
"""More than the pool has places for."""
TIMEOUT_S = 240.0
TASKS = Path("/proc/self/task")


@pytest.fixture(scope="module")
def others() -> frozenset[str]:
    """Threads that are there before those of the pool."""
    return frozenset(task.name for task in TASKS.iterdir()) if TASKS.is_dir() else frozenset()


@pytest.fixture(scope="module")
def pool(others: frozenset[str], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A pool of its own, and jobs for it."""
    made = tmp_path_factory.mktemp("pool") / "pool.so"
    workers = Path(library.__file__).with_name("workers.c")
    try:
        library.build(find_compiler(), made, sources=[workers, Path(__file__).with_name("shares.c")])
    except KernelsMissing as error:
        pytest.skip(str(error))
    return ctypes.CDLL(str(made))


def all_once(pool: ctypes.CDLL, threads: int, count: int) -> bool:
    """Return whether each of `count` shares is computed once, by a worker that nobody else is at the time."""
    computed = (ctypes.c_int * count)()
    wrong = pool.count_shares(threads, ctypes.c_size_t(count), computed)
    return wrong == 0 and list(computed) == [1] * count


@contextmanager
def all_workers_busy(pool: ctypes.CDLL) -> Iterator[None]:
    """Have every worker of `pool` in a share that does not end before this does."""
    threads = 3
    job = (ctypes.c_int * 2)()
    caller = threading.Thread(target=pool.wait_in_shares, args=(threads, job))
    caller.start()
    try:
        while job[0] < threads:
            time.sleep(0.001)
        yield
    finally:
        job[1] = 1
        caller.join()


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 300])
def test_each_share_is_computed_once(pool: ctypes.CDLL, threads: int) -> None:
    for count in COUNTS:
        assert all_once(pool, threads, count), count


def test_any_number_of_threads_may_call_at_once(pool: ctypes.CDLL) -> None:
    def call(seed: int) -> bool:
        return all(all_once(pool, 1 + (seed + turn) % 5, COUNTS[(seed + turn) % 7]) for turn in range(200))

    with ThreadPoolExecutor(CALLERS) as callers:
        assert all(callers.map(call, range(CALLERS), timeout=TIMEOUT_S))


def test_nobody_waits_for_workers_that_are_busy_elsewhere(pool: ctypes.CDLL) -> None:
    with all_workers_busy(pool), ThreadPoolExecutor(1) as caller:
        assert caller.submit(all_once, pool, 3, 1000).result(TIMEOUT_S)


@pytest.mark.skipif(not TASKS.is_dir(), reason="nothing says which threads sleep")
def test_workers_without_work_sleep_and_come_again(pool: ctypes.CDLL, others: frozenset[str]) -> None:
    """The shares of a job end only once all have begun, so others must have taken some."""
    for _ in range(10):
        with all_workers_busy(pool):
            pass
        while any(state_of(task) not in ("S", None) for task in TASKS.iterdir() if task.name not in others):
            time.sleep(0.001)


def state_of(task: Path) -> str | None:
    """Return its letter, None for one that has ended meanwhile."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own(pool: ctypes.CDLL) -> None:
    with all_workers_busy(pool):
        child = os.fork()
        if child == 0:
            try:
                with all_workers_busy(pool):
                    os._exit(0 if all_once(pool, 3, 1000) else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    assert all_once(pool, 3, 1000)
