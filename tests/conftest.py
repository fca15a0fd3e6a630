"""How properties are tried (by the same examples every time, or by new ones), and on how many threads."""

import errno
import logging
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

# Tiny models gain nothing from a second thread, and tests run servers beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# `nohup` and shells that run jobs in the background have them ignored, which the commands under test would inherit.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# How long it takes says something of the machine alone.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", patient, derandomize=True)
settings.register_profile("new", patient)  # pytest --hypothesis-profile=new
settings.load_profile("same")


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what leaves the disk room for so many files more."""

    def fill(files: int) -> None:
        left = iter(range(files))

        def sync(descriptor: int) -> None:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", sync)

    return fill


@pytest.fixture(autouse=True)
def handlers_of_signals() -> Iterator[None]:
    """Keep what a command does to its process, which ends with it, from the tests that follow."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def environment_of_the_process() -> Iterator[None]:
    """Keep what the start of an engine sets for a chip's libraries, too."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name != "PYTEST_CURRENT_TEST"})


@pytest.fixture(autouse=True)
def levels_of_loggers() -> Iterator[None]:
    """Keep what a server's `log_level` lets through, too: others count what is said."""
    loggers = [logging.getLogger(), logging.getLogger("sglk")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = [handler for handler in logger.handlers if handler in handlers]
