"""What is left to say when native code crashes or freezes a process: where in Python each of its threads was.

Then no Python code runs any more, so the interpreter's own faulthandler speaks. Its lines name the op and the plugin.
"""

import faulthandler
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise


def name_what_crashes() -> None:
    """Let a library that kills the process leave the stacks on stderr."""
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)


def crash_in(said: Sequence[str]) -> str | None:
    """Return what the interpreter has `said` of the last crash, and the innermost place in the thread that crashed."""
    told = max((place for place, line in enumerate(said) if line.startswith("Fatal Python error: ")), default=None)
    if told is None:
        return None
    after = pairwise(said[told:])
    places = [line.strip() for before, line in after if before.startswith("Current thread ")]
    return ", ".join([said[told], *places[:1]])


@contextmanager
def ends_when_frozen(limit_s: float) -> Iterator[None]:
    """End the process with exit code 1, and the stacks on stderr, when none of its threads can run for `limit_s`.

    That is a native function which holds the interpreter's lock and does not come back. No signal handler of Python
    runs then, so that nothing short of SIGKILL would end the process either. Time for which it is stopped counts too.
    """
    over = threading.Event()

    def beat() -> None:
        while True:
            faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or 2)
            if over.wait(limit_s / 10):
                faulthandler.cancel_dump_traceback_later()
                return

    thread = threading.Thread(target=beat, name="sglk-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
