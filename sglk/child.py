"""A supervised child process: logged, waited for until it is ready, and never left behind.

The child runs under `sglk.guardian`, which ends it and all its workers when this process ends, however it ends.
"""

import atexit
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from sglk.errors import RunError
from sglk.last_words import crash_in

_GUARDIAN: Final = Path(__file__).with_name("guardian.py")
_TAIL_BYTES: Final = 64 * 1024
_CRASH_LINES: Final = 1000
"""Last ones of the log, in which a crash is looked for: its reason stands before the stacks of all threads."""
_LOG_ROOM_BYTES: Final = 64 * 1024
_READY: Final = "SGLK_READY "
KILLED: Final = "was killed by SIGKILL, as the system does when memory runs out"
"""How a command has ended that nobody here has killed."""
_alive: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()


class ChildProcess:
    """One running command with its log file.

    `label` is what messages call it, and `pass_fds` are file descriptors that it inherits under their numbers. `output`
    is a file descriptor that gets what it prints; whoever reads there writes the log. `folder` is removed where this
    process is killed; else that is its own affair. Raises RunError if the log cannot be written. As a context manager
    it stops the command on the way out.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        label: str,
        env: Mapping[str, str] | None = None,
        grace_s: float = 10.0,
        pass_fds: Sequence[int] = (),
        output: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self.label = label
        self.log = log
        self.grace_s = grace_s
        terms = (str(os.getpid()), str(grace_s), "" if folder is None else str(folder))
        guarded = [sys.executable, "-I", "-S", str(_GUARDIAN), *terms, *command]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as file:
                _require_room(file)
                self._process = subprocess.Popen(
                    guarded,
                    stdin=subprocess.DEVNULL,
                    stdout=file if output is None else output,
                    stderr=subprocess.STDOUT,
                    env=None if env is None else {**os.environ, **env},
                    # Ctrl-C in the terminal reaches the owner alone, who then stops the child in order.
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
        except OSError as error:
            raise RunError(f"cannot start {label} with log {str(log)!r}: {error.strerror}") from error
        _alive.add(self)

    @property
    def pid(self) -> int:
        """Pid of the guardian, which ends as the command ends and takes the command with it."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code of the command (negative = killed by that signal); None while it runs."""
        return self._process.poll()

    @property
    def end(self) -> str | None:
        """How the command has ended and the last that it said; None while it runs."""
        if self.returncode is None:
            return None
        return f"{self.label} {how_it_ended(self.returncode)}: {self._last_words() or 'it printed nothing'}"

    def tail(self, lines: int = 20) -> list[str]:
        """Return the last non-empty lines of the log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]

    def check(self, *, within_s: float = 0.0) -> None:
        """Raise RunError with the last line of the log if the command has ended, or does so `within_s`."""
        if within_s:
            self.pause(within_s)
        if (end := self.end) is not None:
            raise RunError(f"{end} (log: {self.log})")

    def wait_until(self, probe: Callable[[], bool], *, timeout_s: float, what: str = "ready") -> None:
        """Return when `probe()` is true; raise RunError if the command ends before, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not probe():
            self.check()
            if time.monotonic() >= deadline:
                last = self._last_words() or "nothing"
                raise RunError(
                    f"{self.label} was not {what} within {timeout_s:g} s; its last words: {last} (log: {self.log})"
                )
            self.pause(0.05)

    def wait_for_line(self, pattern: re.Pattern[str], *, timeout_s: float) -> re.Match[str]:
        """Return the first match of `pattern` in the log; errors as `wait_until`."""

        def find() -> re.Match[str] | None:
            return pattern.search(self.log.read_text(errors="replace"))

        self.wait_until(lambda: find() is not None, timeout_s=timeout_s)
        match = find()
        assert match is not None
        return match

    def wait(self) -> None:
        """Return when the command has ended."""
        self._process.wait()

    def stop(self) -> None:
        """End the command and its workers: SIGTERM, then SIGKILL after `grace_s`. Harmless when it has ended."""
        _alive.discard(self)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self.grace_s + 10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str | None:
        """Return the last line of the log; what a command says up to being ready is no reason for its end."""
        said = self.tail(_CRASH_LINES)
        ready = max((place for place, line in enumerate(said) if line.startswith(_READY)), default=None)
        if ready is not None:
            said = said[ready + 1 :] or ["it printed nothing after it was ready"]
        return crash_in(said) or (said[-1] if said else None)

    def pause(self, seconds: float) -> None:
        """Sleep, but wake as soon as the command ends."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def __enter__(self) -> "ChildProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def http_ok(url: str, timeout_s: float = 2.0) -> bool:
    """Say whether a GET answers 200, going straight to the host whatever proxy the environment names."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=timeout_s) as response:
            return int(response.status) == 200
    except (OSError, urllib.error.URLError):
        return False


def _require_room(log: BinaryIO) -> None:
    """Raise OSError on a full disk, where the command would run on in silence and the ready line be waited for."""
    log.write(bytes(_LOG_ROOM_BYTES))
    log.flush()
    log.seek(0)
    log.truncate()


def how_it_ended(code: int) -> str:
    """Say what an exit code means."""
    if code >= 0:
        return f"exited with code {code}"
    # Real-time signals have no names of their own.
    known = -code in set(signal.Signals)
    return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


@atexit.register
def _stop_all() -> None:
    for child in list(_alive):
        child.stop()
