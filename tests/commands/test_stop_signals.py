import signal
import subprocess
import sys

import pytest

from sglk.commands.stop_signals import stopped_in_order

WAITING = """
import signal
from sglk.commands.stop_signals import stopped_in_order
with stopped_in_order():
    try:
        print("waiting", flush=True)
        signal.pause()
    finally:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGINT)
print("over", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_any_number_of_signals_is_one_orderly_end(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(number)
        assert child.stdout.read() == "over\n"

    assert child.returncode == 0


def test_an_error_gives_the_signals_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ValueError, match="mine"), stopped_in_order():
        raise ValueError("mine")

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
