"""The latest warnings and errors of the log, for people who look at the server and not at its log."""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglk.server.request_record import ids_told_of

KEPT = 50
SHOWN_CHARACTERS = 500


class Journal(logging.Handler):
    """Keeps the latest warnings that sglk logs, but for those about single HTTP requests, which name no cause."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._entries: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        if record.name == "sglk.server.access":
            return
        message = record.getMessage()
        cut = message if len(message) <= SHOWN_CHARACTERS else f"{message[:SHOWN_CHARACTERS]}..."
        entry = {"at": round(record.created, 3), "level": record.levelname.lower(), "message": cut}
        ids = ids_told_of()
        self._entries.append({**entry, "request_id": ids[0] if len(ids) == 1 else None})

    def entries(self) -> list[dict[str, Any]]:
        """Return what is kept, the latest first."""
        return list(reversed(self._entries.copy()))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the lines of sglk's log while the block runs."""
        logger = logging.getLogger("sglk")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
