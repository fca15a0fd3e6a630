"""Ends that are asked for: SIGTERM and SIGHUP take the same orderly way as Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a process to end: SIGHUP too, by which a terminal takes its leave.

    Not where `nohup`, or another parent, wants SIGHUP to be ignored.
    """
    always = (signal.SIGINT, signal.SIGTERM)
    return always if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*always, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first SIGTERM or SIGHUP into KeyboardInterrupt inside the block, which runs in the main thread.

    Further ones are ignored: a shell and the terminal both send SIGHUP, and `timeout` sends SIGTERM twice.
    """
    taken = [number for number in stop_signals() if number != signal.SIGINT]
    before = {number: signal.getsignal(number) for number in taken}

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in taken:
            signal.signal(number, signal.SIG_IGN)
        # Shells start commands in the background with SIGINT ignored.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        # asyncio gives it its own handler while it runs, which cancels what is in flight.
        signal.raise_signal(signal.SIGINT)

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            # What ends the process has had them ignored until it is gone.
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let an interruption wait for the end of the block; a second Ctrl-C does not.

    For writes: one that is cut off leaves a database locked for those by which a process ends well.
    """
    before = {number: handler for number in stop_signals() if callable(handler := signal.getsignal(number))}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    came: list[int] = []

    def wait(number: int, _frame: FrameType | None) -> None:
        if came and number == signal.SIGINT:
            raise KeyboardInterrupt
        came.append(number)

    for number in before:
        signal.signal(number, wait)
    try:
        yield
    finally:
        # SIGINT comes last: until then nothing interrupts what is put back here.
        for number in reversed(before):
            signal.signal(number, before[number])
        if came:
            signal.raise_signal(came[0])
