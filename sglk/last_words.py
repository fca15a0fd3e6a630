"""What is left to say when native code crashes or freezes a process: where in Python each of its threads was.

Then no Python code runs any more, so the interpreter's own faulthandler speaks. Its lines name the op and the plugin.
"""

import faulthandler
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile, islice, takewhile

_HELPER = re.compile(r'File "(<frozen |.*/lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)|.*-packages/torch/)')
"""A place in the standard library or in torch, where somebody else's call ends: `string_at`, `__call__`."""


def name_what_crashes() -> None:
    """Let a library that kills the process leave the stacks on stderr."""
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)


def crash_in(said: Sequence[str]) -> str | None:
    """Return what the interpreter has `said` of the last crash, and whose code it was in: the innermost in its thread.

    Where all of it is Python's own or torch's, it is the innermost of that.
    """
    told = max((place for place, line in enumerate(said) if line.startswith("Fatal Python error: ")), default=None)
    if told is None:
        return None
    thread = islice(dropwhile(lambda line: not line.startswith("Current thread "), said[told:]), 1, None)
    places = list(takewhile(lambda place: place.startswith("File "), (line.strip() for line in thread)))
    own = [place for place in places if not _HELPER.match(place)]
    return ", ".join([said[told], *(own or places)[:1]])


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
