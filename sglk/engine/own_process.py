"""The process that an engine's thread lives in, which a fork leaves behind."""

import os

from sglk.errors import RequestError


class OwnProcess:
    """Remembers the process that it was made in."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def left(self) -> bool:
        """Whether the caller is in a process that was forked off."""
        return os.getpid() != self._pid

    def require(self) -> None:
        """Raise RequestError (503) in a process that was forked off: nobody would ever answer there."""
        if self.left:
            message = (
                "this process was forked from the one that runs the engine, whose thread it lacks; load the model in "
                "the process that uses it, or start processes with `spawn`"
            )
            raise RequestError(message, code="engine_forked", status=503)
