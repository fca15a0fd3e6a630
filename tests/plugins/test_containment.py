"""A plugin's module changes nothing of the process that imports it, and prints nothing into what users asked for."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sglk import plugins
from sglk.errors import BackendError
from sglk.interrupt import interruptible, stop_signals
from sglk.plugins.containment import output_on_stderr
from tests.plugins.distributions import BACKEND, install_backend


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import torch; torch.set_default_dtype(torch.float16)", "torch's default dtype"),
        ("import torch; torch.set_default_device('meta')", "torch's default device"),
        ("import torch; torch.set_num_threads(torch.get_num_threads() + 1)", "torch's number of threads"),
        ("import torch; torch.set_grad_enabled(False)", "torch's gradient mode"),
        ("import os; os.chdir('/')", "the working folder"),
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "the handler of SIGTERM"),
    ],
)
def test_what_an_import_changes_is_put_back_with_a_warning(
    site: Path, caplog: pytest.LogCaptureFixture, code: str, name: str
) -> None:
    def state() -> tuple[object, ...]:
        settings = torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
        return *settings, torch.is_grad_enabled(), Path.cwd(), signal.getsignal(signal.SIGTERM)

    install_backend(site, "rude", f"{code}\n{BACKEND}")
    before = state()
    plugins.load_backend("rude")
    assert state() == before
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"backend 'rude' (dummy-rude 1.2 at {site}) changed {name} to ")


def test_what_an_import_changes_is_put_back_when_it_fails(site: Path) -> None:
    install_backend(site, "rude", "import torch\ntorch.set_default_dtype(torch.float16)\nraise OSError('gone')\n")
    with pytest.raises(BackendError, match="OSError: gone"):
        plugins.load_backend("rude")
    assert torch.get_default_dtype() is torch.float32


def test_a_signal_during_an_import_is_not_the_plugin_s_doing(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_backend(site, "slow", "import signal\nsignal.raise_signal(signal.SIGTERM)\n")
    before = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        with interruptible(), pytest.raises(KeyboardInterrupt):
            plugins.load_backend("slow")
        # A second one would break off the orderly end that the first one began.
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == []


def test_a_plugin_prints_to_stderr(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os\nprint('imported')\nos.write(1, b'natively\\n')\n"
    made = "    def __init__(self, **options):\n        super().__init__(**options)\n        print('made')\n"
    made += "    def synchronize(self):\n        os.write(1, b'tried\\n')\n"
    install_backend(site, "loud", f"{code}{BACKEND}{made}")
    plugins.create_backend("loud")
    print("asked for")
    printed = capfd.readouterr()
    assert printed.out == "asked for\n"
    assert set(printed.err.split()) >= {"imported", "natively", "made", "tried"}


def test_what_native_code_leaves_in_its_buffer_comes_out_on_stderr() -> None:
    code = (
        "import ctypes\nfrom sglk.plugins.containment import output_on_stderr\n"
        "with output_on_stderr():\n    ctypes.CDLL(None).printf(b'natively\\n')\n"
        "print('asked for')"
    )
    # Where Python writes at once, C does too.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", code], env=buffered, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("asked for\n", "natively\n")


def test_a_closed_stdout_stays_closed(capfd: pytest.CaptureFixture[str]) -> None:
    kept = os.dup(1)
    os.close(1)
    try:
        with output_on_stderr():
            pass
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(1)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
