"""A Workbench in a process of its own: what an op does to that process is told, and the next one finds another.

Needs no torch.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from sglk.child import KILLED, ChildProcess, how_it_ended
from sglk.config.ops_schema import OpsConfig
from sglk.errors import BackendError, RunError
from sglk.last_words import crash_in
from sglk.operators.results import CalledOp, Outcome, TimedOp, Trial, Unmeasured
from sglk.plugins.causes import in_words
from sglk.plugins.claims import find_backend
from sglk.plugins.elsewhere import address

_STACKS = "Fatal Python error: "

_SHOWN_BYTES = 64 * 1024
"""Most that is shown of what the process says up to an answer: an op may print in each of its calls."""

_OPENINGS = 2
"""Tries to open the device again: it may still be busy with the end of the process before."""


class ProcessLost(RunError):
    """The process ended, was silent for too long or has ruined its device while it dealt with a question."""


class DeviceGone(ProcessLost):
    """There is no other process to be had: the device cannot be opened again."""


class RemoteWorkbench:
    """Asks a Workbench; as a context manager it ends the process.

    Raises on entry what a Workbench raises, and BackendError where its process does not survive being opened.
    """

    def __init__(self, config: OpsConfig) -> None:
        self._config = config
        self._factory = address(config.backend.name)
        self._folder = TemporaryDirectory(prefix="sglk-ops-")
        self._child: ChildProcess | None = None
        self._connection: Connection | None = None
        self._told = 0
        """Bytes of the log that have been shown."""
        self.gone: str | None = None
        """Why there is no other process to be had."""

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return what a method of the Workbench returns; raises what that raises.

        It may take `ops.timeout_s`, else, and where it ends the process, BackendError is raised.
        """
        try:
            return self.dare(question, *arguments)
        except ProcessLost as error:
            raise self._fault("lets nobody look at its ops", error) from error

    def dare(self, question: str, *arguments: Any, beyond_s: float = 0.0) -> Any:
        """As `ask`, but for an op that may do anything: takes `beyond_s` more, and raises ProcessLost."""
        if self._connection is None:
            self._open_again()
        return self._answer(question, arguments, self._config.ops.timeout_s + beyond_s)

    def require_device(self) -> None:
        """Raise ProcessLost where no number gets to the device and back: some errors leave nothing that works."""
        if (flaw := self.dare("device_flaw")) is not None:
            self._end_process()
            raise ProcessLost(f"leaves a device that no longer works: {flaw}")

    def __enter__(self) -> "RemoteWorkbench":
        try:
            self._open()
        except ProcessLost as error:
            self._folder.cleanup()
            raise self._fault("does not open its device", error) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; harmless when it has ended."""
        self._end_process()
        self._folder.cleanup()

    def _fault(self, what: str, error: ProcessLost) -> BackendError:
        plugin = find_backend(self._config.backend.name)
        return BackendError(
            f"backend {plugin.name!r} ({plugin.origin}) {what}: {error}; `sglk doctor` with the same words looks into"
            " it, backend=sim does without it"
        )

    def _open(self) -> None:
        self._connection, theirs = Pipe()
        self._told = 0
        with theirs:
            self._child = ChildProcess(
                [sys.executable, "-m", "sglk.operators.workbench_process", str(theirs.fileno())],
                log=Path(self._folder.name) / "log",
                label="the process that ops run in",
                # The same modules as here, plugins among them, and none from whatever folder the user is in.
                env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
                grace_s=1.0,
                pass_fds=(theirs.fileno(),),
                folder=Path(self._folder.name),
            )
        self._answer("open", (self._config, self._factory), self._config.ops.timeout_s)

    def _open_again(self) -> None:
        """Start another process; where that fails, nothing changes by trying for each op once more."""
        for _ in range(_OPENINGS if self.gone is None else 0):
            try:
                self._open()
            # Whatever it is, what has been found so far is worth having.
            except Exception as error:  # noqa: BLE001, PERF203
                self._end_process()
                self.gone = f"the device cannot be opened again: {in_words(error)}"
            else:
                self.gone = None
                return
        raise DeviceGone(self.gone)

    def _answer(self, question: str, arguments: Sequence[Any], timeout_s: float) -> Any:
        assert self._connection is not None
        try:
            self._connection.send((question, arguments))
            answered = self._connection.poll(timeout_s)
            answer = self._connection.recv() if answered else None
        except (EOFError, OSError):
            raise ProcessLost(self._how_it_ended()) from None
        if not answered:
            self._end_process()
            self._show()
            raise ProcessLost(f"does not come back within ops.timeout_s={self._config.ops.timeout_s:g}")
        self._show()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _how_it_ended(self) -> str:
        """Return how the process has ended, and where in Python that was or what it said since the last answer."""
        assert self._child is not None
        self._child.wait()
        code = self._child.returncode
        assert code is not None
        self._end_process()
        said = [line.strip() for line in self._show().splitlines() if line.strip()]
        last_words = crash_in(said) or (said[-1] if said else "it printed nothing")
        end = KILLED if code == -signal.SIGKILL else how_it_ended(code)
        return f"ends its process, which {end}: {last_words}"

    def _end_process(self) -> None:
        if self._child is not None:
            self._child.stop()
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _show(self) -> str:
        """Print what the process has said since the last time, but for the stacks of a crash, and return all of it.

        Of much it is the end. The file is emptied, though the process goes on to write where it was.
        """
        path = Path(self._folder.name) / "log"
        with path.open("rb") as log:
            end = max(log.seek(0, os.SEEK_END), self._told)
            start = log.seek(max(self._told, end - _SHOWN_BYTES))
            # What was written while the file was emptied is gone, and reads as zeros.
            text = log.read(end - start).lstrip(b"\0").decode(errors="replace")
        if end > self._told:
            os.truncate(path, 0)
        if start > self._told:
            sys.stderr.write(f"... {start - self._told:,} bytes are left out\n")
        self._told = end
        sys.stderr.write(text.partition(_STACKS)[0])
        sys.stderr.flush()
        return text


def tried(bench: RemoteWorkbench, ops: tuple[str, ...], trials: Sequence[Trial]) -> Iterator[Outcome]:
    """Make one trial after the other; what has ended the process, or hung, in one of them is not tried in others."""
    lost: dict[tuple[str, int], str] = {}
    for number, trial in enumerate(trials):
        key = trial.op, trial.offer
        if trial.skipped is not None:
            yield Outcome(trial, None)
        elif key in lost:
            yield Outcome(replace(trial, skipped=f"not tried any more: {lost[key]}"), None)
        else:
            outcome = _outcome(bench, ops, number, trial)
            if isinstance(outcome, str):
                lost[key] = outcome
                outcome = Outcome(trial, outcome)
            yield outcome


def _outcome(bench: RemoteWorkbench, ops: tuple[str, ...], number: int, trial: Trial) -> Outcome | str:
    """Return what a trial comes to; where the process is lost by it, how."""
    problem: str | None = None
    try:
        problem = bench.dare("problem", ops, number)
        if problem is not None:
            bench.require_device()
    except DeviceGone as error:
        return Outcome(replace(trial, skipped=f"not tried: {error}"), None)
    except ProcessLost as error:
        return _together(problem, str(error))
    return Outcome(trial, problem)


def timed(
    bench: RemoteWorkbench, ops: tuple[str, ...], called: Sequence[CalledOp], time_s: float
) -> Iterator[TimedOp | Unmeasured]:
    """Time one op after the other, as `tried` does."""
    lost: dict[tuple[str, str], str] = {}
    for number, each in enumerate(called):
        key = each.op, each.provider
        result = lost[key] if key in lost else _time(bench, ops, number, each, time_s)
        if isinstance(result, str):
            lost[key] = result
            result = Unmeasured(each.op, dict(each.shape), result, lost=True)
        yield result


def _time(
    bench: RemoteWorkbench, ops: tuple[str, ...], number: int, called: CalledOp, time_s: float
) -> TimedOp | Unmeasured | str:
    """Return what timing an op comes to; where the process is lost by it, how."""
    result: TimedOp | Unmeasured | None = None
    try:
        result = bench.dare("time", ops, number, beyond_s=time_s)
        if isinstance(result, Unmeasured):
            bench.require_device()
    except DeviceGone as error:
        return Unmeasured(called.op, dict(called.shape), str(error))
    except ProcessLost as error:
        told = f"{called.provider} {error}"
        return _together(result.reason, str(error)) if isinstance(result, Unmeasured) else told
    assert result is not None
    return result


def _together(problem: str | None, end: str) -> str:
    return end if problem is None else f"{problem}; it {end}"
