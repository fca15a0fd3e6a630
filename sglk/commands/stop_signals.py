"""SIGINT, SIGTERM and SIGHUP as orders to end well, from the first moment of a process to its last."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from sglk.interrupt import stop_signals


class Stopped(KeyboardInterrupt):
    """A signal came; raised where the main thread just was, in a plugin's code too, whose fault it is not."""


@contextmanager
def stopped_in_order() -> Iterator[None]:
    """Leave the block at the first signal, without an error; later ones are ignored until the process is gone.

    A server inside of the block may put handlers of its own above these. To be used by a command whose process ends
    with it.
    """

    taken = stop_signals()

    def ignore() -> None:
        for number in taken:
            signal.signal(number, signal.SIG_IGN)

    def stop(_number: int, _frame: FrameType | None) -> None:
        ignore()
        raise Stopped

    previous = {number: signal.signal(number, stop) for number in taken}
    try:
        yield
        ignore()
    except Stopped:
        return
    except BaseException:
        for number, handler in previous.items():
            signal.signal(number, handler)
        raise


def end_at_once(code: int) -> NoReturn:
    """End this process with what it has written, whatever its threads are doing."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
