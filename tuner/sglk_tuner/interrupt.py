"""Ends that are asked for: SIGTERM and SIGHUP take the same orderly way as Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt inside the block, which runs in the main thread."""
    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    for signum, handler in before.items():
        # `nohup` asks for SIGHUP to be ignored.
        if handler is not signal.SIG_IGN:
            signal.signal(signum, _interrupt)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    # By way of SIGINT: asyncio gives it its own handler while it runs, which cancels what is in flight.
    signal.raise_signal(signal.SIGINT)
