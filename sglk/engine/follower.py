"""A rank's process as the engine's process sees it."""

import os
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from sglk.child import ChildProcess
from sglk.engine.batch import RunnerLost
from sglk.engine.rank_messages import Call, Load, Reply

GRACE_S = 2.0
"""A rank has nothing to save when it is told to stop."""

END_S = 1.0
"""How long a process may take to end that has closed its connection."""

LOG_LINES = 40
"""Of what a rank has said that are told when it has ended."""


class FollowerSilent(RunnerLost):
    """A rank has not answered in time."""


class Follower:
    """The process of rank `rank`, which ends with this one, and `folder`, where its log is, with both.

    Every message is answered by one reply: `send` and `receive` alternate, from one thread.
    """

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
        self.peak_memory_bytes = 0
        """The most memory that the rank's device held by its last reply."""
        self._connection, theirs = Pipe()
        with theirs:
            self._child = ChildProcess(
                [sys.executable, "-m", "sglk.engine.rank_process", str(theirs.fileno())],
                log=folder / f"rank{rank}.log",
                label=f"rank {rank}",
                # The same modules as here, plugins among them, and none from whatever folder the user is in.
                env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
                grace_s=GRACE_S,
                pass_fds=(theirs.fileno(),),
                folder=folder,
            )

    def send(self, message: Load | Call) -> None:
        """Tell the rank what to do; raises RunnerLost when it is gone."""
        try:
            self._connection.send(message)
        except OSError as error:
            raise RunnerLost(f"rank {self.rank} cannot be reached: {error.strerror}") from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return what came of the last message.

        Raises what the rank raised, as a SglkError, FollowerSilent when there is nothing for `timeout_s`, and
        RunnerLost when the rank is gone or has lost the others.
        """
        try:
            if not self._connection.poll(timeout_s):
                raise FollowerSilent(f"rank {self.rank} has not answered for {timeout_s:.3g} s")
            reply: Reply = self._connection.recv()
        except (EOFError, OSError) as error:
            self._child.pause(END_S)
            end, _ = self._told_end() or (f"rank {self.rank} closed its connection", [])
            raise RunnerLost(end) from error
        self.peak_memory_bytes = reply.peak_memory_bytes
        if reply.failure is None:
            return reply.value
        error_here = reply.failure.error(self.rank)
        raise RunnerLost(str(error_here)) if reply.failure.lost else error_here

    def answers(self, timeout_s: float) -> bool:
        """Return whether there is something to `receive`, be it the end of the rank, within `timeout_s`."""
        try:
            return self._connection.poll(timeout_s)
        except OSError:
            return True

    def wait(self) -> None:
        """Return when the process has ended."""
        self._child.wait()

    def end(self) -> tuple[str, list[str]]:
        """Return in which way the process has ended, and the last lines of its log, which goes with its folder."""
        return self._told_end() or (f"rank {self.rank} has ended", [])

    def _told_end(self) -> tuple[str, list[str]] | None:
        """Return what `end` does; None = the process runs, or the log is gone: the runner is being closed."""
        try:
            end, said = self._child.end, self._child.tail(LOG_LINES)
        except OSError:
            return None
        return None if end is None else (end, said)

    def stop(self) -> None:
        """End the process; harmless when it has ended."""
        self._child.stop()
        self._connection.close()
