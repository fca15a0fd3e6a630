"""Native code that freezes the interpreter ends the process in time, and is named; so is what crashes it."""

import faulthandler
import subprocess
import sys
import threading

import pytest

from sglk.last_words import crash_in, ends_when_frozen

FREEZES = """
import ctypes
from sglk.last_words import ends_when_frozen

def hangs_in_the_driver():
    with ends_when_frozen(0.2):
        # Holds the interpreter's lock, unlike CDLL.
        ctypes.PyDLL(None).usleep(600_000_000)

hangs_in_the_driver()
print("over")
"""


def test_a_frozen_process_ends_and_names_what_froze_it() -> None:
    done = subprocess.run([sys.executable, "-c", FREEZES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "in hangs_in_the_driver" in done.stderr


def test_nothing_is_watched_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[bool] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: armed.append(True))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: armed.append(False))
    with ends_when_frozen(600.0):
        pass
    assert (armed[0], armed[-1]) == (True, False)
    assert "sglk-heartbeat" not in {thread.name for thread in threading.enumerate()}


SITE = "/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (["/usr/lib/python3.12/ctypes/__init__.py", f"{SITE}/chip/ops.py", "/app/sglk/calling.py"], 1),
        ([f"{SITE}/torch/_ops.py", f"{SITE}/torch_chip/ops.py"], 1),
        (["/usr/lib64/python3.13t/ctypes/__init__.py", "/usr/lib/python3/dist-packages/chip.py"], 1),
        ([f"{SITE}/torch/_ops.py", "<frozen importlib._bootstrap>"], 0),
    ],
)
def test_a_crash_is_in_the_code_that_called_python_s_own_or_torch(stack: list[str], place: int) -> None:
    frames = [f'  File "{file}", line {line} in call' for line, file in enumerate(stack)]
    other = ["Thread 0x2 (most recent call first):", '  File "/elsewhere.py", line 1 in wait']
    reason = "Fatal Python error: Segmentation fault"
    said = [reason, *other, "Current thread 0x1 (most recent call first):", *frames, *other, "Extension modules: x"]
    assert crash_in(said) == f"{reason}, {frames[place].strip()}"
    assert crash_in(said[:4]) == reason
