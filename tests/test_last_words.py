"""Native code that freezes the interpreter ends the process in time, and is named."""

import subprocess
import sys

CODE = """
import ctypes
from sglk.last_words import ends_when_frozen

def hangs_in_the_driver():
    # Holds the interpreter's lock, unlike CDLL.
    ctypes.PyDLL(None).usleep({microseconds})

with ends_when_frozen({limit_s}):
    {inside}
{after}
print("over")
"""


def run(
    inside: str, after: str = "", microseconds: int = 1_500_000, limit_s: float = 1.0
) -> "subprocess.CompletedProcess[str]":
    code = CODE.format(inside=inside, after=after, microseconds=microseconds, limit_s=limit_s)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_frozen_process_ends_and_names_what_froze_it() -> None:
    done = run("hangs_in_the_driver()", microseconds=600_000_000, limit_s=0.2)
    assert (done.returncode, done.stdout) == (1, "")
    assert "in hangs_in_the_driver" in done.stderr


def test_nothing_is_watched_after_the_block() -> None:
    done = run("pass", after="hangs_in_the_driver()")
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
