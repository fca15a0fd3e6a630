"""A running upstream engine: under a guardian, its output relayed, its end told with its last words."""

import os
from contextlib import suppress
from pathlib import Path

from sglk.child import ChildProcess
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.output import OutputRelay

GRACE_S = 20.0
"""How long it may take to end after SIGTERM, with its workers."""

_LAST_WORDS_S = 2.0


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
        """Return the last non-empty lines of the log; of a process that has ended, the very last."""
        if self.returncode is not None:
            self._relay.join(_LAST_WORDS_S)
        return super().tail(lines)

    def why_it_ended(self, lines: int = 5) -> str | None:
        """Return how it ended, with its last lines; None while it runs."""
        code = self.returncode
        if code is None:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        said = " / ".join(self.tail(lines)) or "it printed nothing"
        return f"{self.label} {how}: {said} (log: {self.log})"
