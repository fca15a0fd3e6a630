import signal
import subprocess
import sys

import pytest

from sglk.commands.stop_signals import stopped_in_order

WAITING = """
import os, signal, time
from sglk.commands.stop_signals import stopped_in_order
from sglk.interrupt import interruptible

def end():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.raise_signal(number)

with  stopped_in_order():
    try:
        # Not by print(), which writes once more what a signal has caught it with.
        os.write(1, b"waiting\\n")
        # A signal that comes just before pause() is not what it waits for.
        while True:
            time.sleep(0.01)
    finally:
        end()
end()
print("over", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_any_number_of_signals_is_one_orderly_end(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(number)
        assert child.stdout.read() == "over\n"

    assert child.returncode == 0


def test_an_error_gives_the_signals_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(ValueError, match="mine"), stopped_in_order():
        raise ValueError("mine")

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


ENDING = """
import threading
from sglk.commands.stop_signals import end_at_once
threading.Thread(target=threading.Event().wait).start()
print("said", end="")
end_at_once(3)
"""

SERVING = """
import threading
import sglk.server.serve
from sglk.commands.serve import run
threading.Thread(target=threading.Event().wait).start()
sglk.server.serve.serve = lambda *arguments: False
run(["chip=cpu", "model=smollm2", "server.port=0"])
"""


@pytest.mark.parametrize(("program", "said", "code"), [(ENDING, "said", 3), (SERVING, "", 0)], ids=["at once", "serve"])
def test_a_thread_that_cannot_be_stopped_keeps_no_process(program: str, said: str, code: int) -> None:
    """As that of a replica which is being started again when the server ends."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)

    assert (done.stdout, done.returncode) == (said, code), done.stderr
