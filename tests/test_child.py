import os
import re
import signal
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from sglk.child import ChildProcess, http_ok
from sglk.errors import RunError
from tests.processes import is_alive
from tests.waiting import wait_until

# A command with a worker in its group and one outside it; all print their pids.
FAMILY = "echo $$; sleep 600 & echo $!; setsid sleep 601 & echo $!; echo ready; wait"
READY = re.compile("^ready$", re.MULTILINE)


def family_pids(log: Path) -> list[int]:
    return [int(word) for word in log.read_text().split() if word.isdigit()]


def start(command: str, log: Path, grace_s: float = 60.0) -> ChildProcess:
    return ChildProcess(["sh", "-c", command], log=log, label="engine", grace_s=grace_s)


def test_stop_ends_the_whole_family(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with start(FAMILY, log) as child:
        child.wait_for_line(READY, timeout_s=120)
        pids = family_pids(log)
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in [*pids, child.pid])
    assert child.returncode == -signal.SIGTERM
    child.stop()


def test_a_command_without_room_for_its_log_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot start engine with log '/dev/full': No space left on device"):
        start(f"touch {tmp_path}/started", Path("/dev/full"))
    assert not (tmp_path / "started").exists()


def test_stop_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    with start("trap '' TERM; echo ready; while :; do sleep 0.05; done", tmp_path / "log", grace_s=0.2) as child:
        child.wait_for_line(READY, timeout_s=120)
    assert child.returncode == -signal.SIGKILL


def test_stop_waits_for_an_orderly_end(tmp_path: Path) -> None:
    with start("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done", tmp_path / "log") as child:
        child.wait_for_line(READY, timeout_s=120)
    assert child.returncode == 0
    assert child.tail(1) == ["bye"]


def test_the_command_ends_its_workers_in_its_own_order(tmp_path: Path) -> None:
    worker = f"(trap 'echo crashed' TERM; until [ -e {tmp_path}/over ]; do sleep 0.02; done; echo orderly) &"
    command = f"{worker} trap 'touch {tmp_path}/over; wait; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    with start(command, tmp_path / "log") as child:
        child.wait_for_line(READY, timeout_s=120)
    assert (child.returncode, child.tail(1)) == (0, ["orderly"])
    assert "crashed" not in child.tail()


def test_early_exit_is_reported_with_code_and_last_words(tmp_path: Path) -> None:
    with (
        start("echo loading; echo 'out of memory'; exit 7", tmp_path / "log") as child,
        pytest.raises(RunError, match=r"engine exited with code 7: out of memory \(log: .*log\)"),
    ):
        child.wait_until(lambda: False, timeout_s=120)


@pytest.mark.parametrize(
    ("said", "last"),
    [
        ("Fatal Python error: Aborted; echo SGLK_READY x; echo the disk is full", "the disk is full"),
        ("Fatal Python error: Aborted; echo SGLK_READY x", "it printed nothing after it was ready"),
        ("Fatal Python error: Aborted; echo Fatal Python error: Bus error; echo bye", "Fatal Python error: Bus error"),
    ],
)
def test_of_crashes_only_the_last_one_since_it_was_ready_is_the_reason(tmp_path: Path, said: str, last: str) -> None:
    with start(f"echo {said}; exit 7", tmp_path / "log") as child:
        wait_until(lambda: child.returncode is not None)
        assert child.end == f"engine exited with code 7: {last}"


def test_death_by_signal_is_named(tmp_path: Path) -> None:
    with start("kill -SEGV $$", tmp_path / "log") as child, pytest.raises(RunError, match="was killed by SIGSEGV"):
        child.wait_until(lambda: False, timeout_s=120)


def test_a_signal_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    with start("kill -35 $$", tmp_path / "log") as child, pytest.raises(RunError, match="was killed by signal 35"):
        child.wait_until(lambda: False, timeout_s=120)


def test_a_hanging_start_times_out(tmp_path: Path) -> None:
    with start("echo loading weights; sleep 600", tmp_path / "log") as child:
        child.wait_for_line(re.compile("loading weights\n"), timeout_s=120)
        with pytest.raises(RunError, match=r"not ready within 0.1 s; its last words: loading weights"):
            child.wait_until(lambda: False, timeout_s=0.1)


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with (
        ChildProcess(["/no/such/engine"], log=tmp_path / "log", label="engine") as child,
        pytest.raises(RunError, match=r"exited with code 127: cannot run '/no/such/engine'"),
    ):
        child.wait_until(lambda: False, timeout_s=120)


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot start engine with log"):
        ChildProcess(["true"], log=tmp_path / "file" / "log", label="engine")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_an_owner_that_dies(tmp_path: Path, signum: signal.Signals) -> None:
    folder = tmp_path / "folder"
    log = folder / "log"
    script = f"""
import pathlib, re, time
from sglk.child import ChildProcess
folder = pathlib.Path({str(folder)!r})
child = ChildProcess(["sh", "-c", {FAMILY!r}], log=folder / "log", label="engine", grace_s=60, folder=folder)
child.wait_for_line(re.compile("^ready$", re.M), timeout_s=120)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        pids = family_pids(log)
        assert len(pids) == 3
        owner.send_signal(signum)
        owner.wait(120)
    wait_until(lambda: not any(is_alive(pid) for pid in pids))
    if signum == signal.SIGINT:
        assert folder.exists(), "an owner that ends by itself removes its own folders"
    else:
        wait_until(lambda: not folder.exists())


def test_the_end_of_the_starting_thread_does_not_end_the_child(tmp_path: Path) -> None:
    children: list[ChildProcess] = []
    log = tmp_path / "log"
    thread = Thread(
        target=lambda: children.append(start("trap 'exit 3' USR1; echo $$; while :; do sleep 0.02; done", log))
    )
    thread.start()
    thread.join()
    with children[0] as child:
        child.wait_for_line(re.compile(r"\d+"), timeout_s=120)
        os.kill(family_pids(log)[0], signal.SIGUSR1)
        with pytest.raises(RunError, match="exited with code 3"):
            child.wait_until(lambda: False, timeout_s=120)


def test_environment_and_interrupts_of_the_command_are_its_own(tmp_path: Path) -> None:
    command = 'echo "$COLOUR"; kill -INT $$; sleep 600'
    with ChildProcess(["sh", "-c", command], log=tmp_path / "log", label="engine", env={"COLOUR": "blue"}) as child:
        # The signals that the guardian blocks for itself reach the command.
        wait_until(lambda: child.returncode is not None)
    assert child.tail() == ["blue"]
    assert child.returncode == -signal.SIGINT


def test_probe_ignores_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with HTTPServer(("127.0.0.1", 0), Healthy) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}"
            assert http_ok(f"{url}/health", timeout_s=120)
            assert not http_ok(f"{url}/elsewhere", timeout_s=120)
            server.shutdown()
        assert not http_ok(url)


def test_a_crash_is_named_by_the_interpreter_s_reason_and_place(tmp_path: Path) -> None:
    """Below it stand the stacks of all threads and a list of modules."""
    code = """
import os, signal, threading
import yaml

def driver():
    os.kill(os.getpid(), signal.SIGSEGV)

threading.Thread(target=threading.Event().wait, daemon=True).start()
driver()
"""
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    with ChildProcess(command, log=tmp_path / "log", label="engine") as child:
        child.wait()
        place = 'File "<string>", line 6 in driver'
        assert child.end == f"engine was killed by SIGSEGV: Fatal Python error: Segmentation fault, {place}"


@pytest.mark.parametrize(
    ("after", "words"), [("", "it printed nothing after it was ready"), ("echo lost the device;", "lost the device")]
)
def test_the_ready_line_is_no_reason_for_an_end(tmp_path: Path, after: str, words: str) -> None:
    with start(f"echo hello; echo 'SGLK_READY {{}}'; {after} kill -KILL $$", tmp_path / "log") as child:
        child.wait()
        with pytest.raises(RunError, match=f"killed by SIGKILL: {words} "):
            child.check()
