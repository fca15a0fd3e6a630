"""The server's log: lines for people, or one JSON object per line; each with the id of the request it is about."""

import json
import logging
import time
from typing import Any

from sglk.server.request_record import current_request_id

FACTS = "facts"
"""Attribute of a log record that carries its fields; in JSON they stand beside the message."""


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message [request id]`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        request_id, line = current_request_id(), super().formatMessage(record)
        return line if request_id is None else f"{line} [{request_id}]"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time` (UTC), `level`, `logger`, `message`, `request_id` and the line's own facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := current_request_id()) is not None:
            told["request_id"] = request_id
        told |= getattr(record, FACTS, {})
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        # Paths and ids may hold half of a surrogate pair, which only escapes can say.
        return json.dumps(told, ensure_ascii=True, default=str)


FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}


def set_up_logging(level: str, log_format: str) -> None:
    """Write to standard error: what sglk says from `level` on, and warnings of everybody else."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[log_format]())
    # Does nothing where the program around has set up its own.
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("sglk").setLevel(logging.DEBUG if level == "trace" else getattr(logging, level.upper()))
