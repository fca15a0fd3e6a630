"""What ends any command in order."""

import os
import pty
import signal
import subprocess
import sys

import pytest

WAITING = """
import asyncio, os, signal, sys
from sglk import cli

async def for_ever():
    try:
        # Not by print(), which writes once more what a signal has caught it with.
        os.write(1, b"waiting\\n")
        # A loop that just begins to wait for ever does not hear of a signal.
        while True:
            await asyncio.sleep(0.01)
    finally:
        print("cleared", flush=True)

def dispatch(words):
    try:
        asyncio.run(for_ever())
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        print("whole", flush=True)

for number in map(int, sys.argv[1:]):
    signal.signal(number, signal.SIG_IGN)
cli._dispatch = dispatch
sys.exit(cli.main([]))
"""


def start(*ignored: signal.Signals) -> subprocess.Popen[str]:
    words = [str(int(number)) for number in ignored]
    child = subprocess.Popen([sys.executable, "-c", WAITING, *words], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    return child


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interruption_and_others_do_not_disturb_it(number: signal.Signals, in_background: bool) -> None:
    """Shells start what runs in the background with SIGINT ignored."""
    with start(*([signal.SIGINT] if in_background else [])) as child:
        child.send_signal(number)
        assert child.communicate(timeout=60)[0] == "cleared\nwhole\n"

    assert child.returncode == 130


def test_under_nohup_a_hangup_ends_nothing() -> None:
    with start(signal.SIGHUP) as child:
        child.send_signal(signal.SIGHUP)
        child.send_signal(signal.SIGTERM)
        assert child.communicate(timeout=60)[0] == "cleared\nwhole\n"


QUIET = """
import signal
from sglk.interrupt import interruptible
with interruptible():
    pass
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)
"""


def test_afterwards_the_signals_are_as_before() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)

    assert done.stdout == "True True\n"


GONE = """
import asyncio, os, sys
from sglk import cli

async def for_ever():
    print("waiting", flush=True)
    while True:
        await asyncio.sleep(0.01)

def dispatch(words):
    try:
        asyncio.run(for_ever())
    finally:
        os.write(int(sys.argv[1]), b"cleared")

cli._dispatch = dispatch
sys.exit(cli.main([]))
"""


def test_a_terminal_that_is_closed_leaves_time_to_clear_up() -> None:
    master, terminal = pty.openpty()
    ours, theirs = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{GONE}", str(theirs)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        pass_fds=[theirs],
    )
    os.close(terminal)
    os.close(theirs)
    with os.fdopen(master, "rb", buffering=0) as screen:
        # With its last byte: who is still writing when the terminal goes fails before any signal comes.
        assert screen.readline() == b"waiting\r\n"

    assert os.read(ours, 100) == b"cleared"
    assert child.wait(120) == 130
    os.close(ours)
