"""A running upstream engine: under a guardian, its output relayed, its end told with its last words."""

import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sglk.child import KILLED, ChildProcess, how_it_ended
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.output import REMEMBERED, OutputRelay

GRACE_S = 20.0
"""How long it may take to end after SIGTERM, with its workers."""

_LAST_WORDS_S = 2.0

_RAISED = re.compile(r"^(?:\([^)]*\) )?(?:ERROR \S+ \S+ \[[^\]]*\] )?((?:\w+\.)*\w*(?:Error|Exception): .+)")
"""An exception's own line, also where each line of a traceback has a head as in vLLM's log."""

_PART_LOST = re.compile(
    r"(?:\[\d[^\]]*\] |(?:\([^)]*\) )?[A-Z]+ \S+ \S+ \[[^\]]*\] |(?=[\w.]*EngineDeadError: ))"
    r"(?:\[shutdown\] MPClient: |[\w.]*EngineDeadError: )?"
    r"((?:Subprocess|Worker proc) \S+ (?:\(pid=\d+\) )?"
    r"(?:crashed with exit code -?\d+|died unexpectedly(?: \(exit code: -?\d+\))?)"
    r"|engine core exited unexpectedly|EngineCore encountered an issue)"
)
"""What is said of a process of its own that is gone: SGLang and vLLM end themselves then.

Only after the head of a line of theirs: a prompt that they log may have the same words.
"""

_SIGNALLED = re.compile(r"exit code:? -\d")

_KILLED = re.compile(rf"exit code:? -{signal.SIGKILL:d}\b")

_SERVER = "(APIServer "
"""How vLLM begins the lines of the process whose exceptions cost no other one its life."""

_TAKEN_AMONG = 5
"""Last lines among which a port that was taken is looked for: an engine that gets over it goes on to say more."""

_TAKEN = re.compile("address already in use|EADDRINUSE", re.IGNORECASE)


class UpstreamProcess(ChildProcess):
    """The process of a command, and all that it starts: none of them outlives this process, however that ends."""

    def __init__(self, command: UpstreamCommand, *, log: Path, label: str) -> None:
        """Start it; raises RunError where that is impossible. The log of the one before it becomes `<log>.1`."""
        with suppress(OSError):
            log.replace(log.with_name(f"{log.name}.1"))
        ours, its = os.pipe()
        try:
            super().__init__(
                command.argv,
                log=log,
                label=f"{command.engine} {label}",
                env=command.variables,
                grace_s=GRACE_S,
                output=its,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(its)
        self._relay = OutputRelay(ours, log, label)
        self._relay.start()

    def tail(self, lines: int = 20) -> list[str]:
        """Return the last non-empty lines; of a process that has ended, the very last."""
        if self.returncode is not None:
            self._relay.join(_LAST_WORDS_S)
        return self._relay.said[-lines:]

    def note_ready(self) -> None:
        """Leave what it has said so far out of why it may end: engines print exceptions that they get over."""
        self._relay.forget()

    @property
    def found_its_port_taken(self) -> bool:
        """Whether it ended because somebody else held a port that it wanted, by its last words."""
        return any(_TAKEN.search(line) for line in self.tail(_TAKEN_AMONG))

    def why_it_ended(self, lines: int = 5) -> str | None:
        """Return how it ended, with its last lines; None while it runs."""
        code = self.returncode
        if code is None:
            return None
        said = self.tail(REMEMBERED)
        if code == -signal.SIGKILL and not any(map(_cause_in, said)):
            # SGLang kills itself so as well, but says why; other lines have nothing to do with such an end.
            return f"{self.label} {KILLED} (log: {self.log})"
        told = " / ".join(last_words(said, lines)) or "it printed nothing more"
        return f"{self.label} {how_it_ended(code)}: {told} (log: {self.log})"


def last_words(said: Sequence[str], lines: int) -> list[str]:
    """Return the first cause that was told, and the last line; where none was, the last lines.

    What comes between are mostly consequences. Where a process of the engine is gone, that alone is told, but for an
    exception before it of which it may have ended.
    """
    told = [line for line in said if _cause_in(line)]
    lost = next(((at, match.group(1)) for at, line in enumerate(told) if (match := _PART_LOST.match(line))), None)
    if lost is not None:
        before, part = told[: lost[0]], lost[1]
        # No exception is the end of what a signal has ended.
        if _SIGNALLED.search(part) or all(line.startswith(_SERVER) for line in before):
            return [f"{part}, as when the system runs out of memory" if _KILLED.search(part) else part]
    cause = _cause_in(told[0]) if told else None
    if cause is None:
        return list(said[-lines:])
    return [cause] if said[-1].endswith(cause) else [cause, said[-1]]


def _cause_in(line: str) -> str | None:
    match = _PART_LOST.match(line) or _RAISED.match(line)
    return match and match.group(1)
