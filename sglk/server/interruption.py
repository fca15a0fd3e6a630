"""What one task waits for, ended from outside by an exception that says why."""

import asyncio
import sys
from types import TracebackType


class Interruption:
    """Context in which others may end what the current task waits for.

    A task of its own for what may have to be ended would cost more than most of what is waited for.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __enter__(self) -> "Interruption":
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        return self

    def end_by(self, error: BaseException) -> None:
        """Raise `error` where the task waits; only the first call counts. For callbacks of the event loop."""
        if self._error is None:
            self._error = error
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._error is not None and kind is asyncio.CancelledError:
            if sys.version_info >= (3, 11):
                self._task.uncancel()
            raise self._error from None
