"""A Workbench in a process of its own: what an op does to that process is told, and the next one finds another.

Needs no torch.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from sglk.child import ChildProcess, how_it_ended
from sglk.config.ops_schema import OpsConfig
from sglk.errors import BackendError, RunError, SglkError
from sglk.last_words import crash_in
from sglk.operators.results import CalledOp, Outcome, TimedOp, Trial, Unmeasured
from sglk.plugins.claims import find_backend
from sglk.plugins.elsewhere import address

_STACKS = "Fatal Python error: "


class ProcessLost(RunError):
    """The process ended, or was silent for too long, while it dealt with a question."""


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
        self._gone: str | None = None
        """Why there is no other process to be had."""

    def ask(self, question: str, *arguments: Any, beyond_s: float = 0.0) -> Any:
        """Return what a method of the Workbench returns; raises what that raises.

        It may take `ops.timeout_s` and `beyond_s`, else ProcessLost is raised, as where the process ends.
        """
        if self._connection is None:
            self._open_again()
        return self._answer(question, arguments, self._config.ops.timeout_s + beyond_s)

    def __enter__(self) -> "RemoteWorkbench":
        try:
            self._open()
        except ProcessLost as error:
            self._folder.cleanup()
            plugin = find_backend(self._config.backend.name)
            raise BackendError(
                f"backend {plugin.name!r} ({plugin.origin}) does not open its device: {error}; `sglk doctor` with the"
                " same words looks into it, backend=sim does without it"
            ) from error
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
        if self._gone is None:
            try:
                self._open()
            except SglkError as error:
                self._end_process()
                self._gone = f"the device cannot be opened again: {error}"
        if self._gone is not None:
            raise ProcessLost(self._gone)

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
        return f"ends its process, which {how_it_ended(code)}: {last_words}"

    def _end_process(self) -> None:
        if self._child is not None:
            self._child.stop()
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _show(self) -> str:
        """Print what the process has said since the last time, but for the stacks of a crash, and return all of it."""
        with (Path(self._folder.name) / "log").open("rb") as log:
            log.seek(self._told)
            new = log.read()
        self._told += len(new)
        text = new.decode(errors="replace")
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
            try:
                yield Outcome(trial, bench.ask("problem", ops, number))
            except ProcessLost as error:
                lost[key] = str(error)
                yield Outcome(trial, str(error))


def timed(
    bench: RemoteWorkbench, ops: tuple[str, ...], called: Sequence[CalledOp], time_s: float
) -> Iterator[TimedOp | Unmeasured]:
    """Time one op after the other, as `tried` does."""
    lost: dict[tuple[str, str], str] = {}
    for number, each in enumerate(called):
        key = each.op, each.provider
        if key not in lost:
            try:
                yield bench.ask("time", ops, number, beyond_s=time_s)
                continue
            except ProcessLost as error:
                lost[key] = f"{each.provider} {error}"
        yield Unmeasured(each.op, dict(each.shape), lost[key], lost=True)
