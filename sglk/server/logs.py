"""The server's log: lines for people, or one JSON object per line; each with the id of the request it is about."""

import json
import logging
import time
from typing import Any

from sglk.server.request_record import ids_told_of

FACTS = "facts"
"""Attribute of a log record that carries its fields; in JSON they stand beside the message."""

# ASCII's and Latin-1's control characters, by which a terminal does more than show, and Unicode's ends of lines.
_ESCAPED = {code: ascii(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}

SHOWN = 8
"""Requests that a line for people names at most."""


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message [request ids]`, and tracebacks further in: only a record begins a line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._second, self._written = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the local time, as the standard library has it, which would write each line's second anew."""
        second = int(record.created)
        if second != self._second:
            self._second, self._written = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._written},{int(record.msecs):03d}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        # A message may repeat what a client sent, which shall not look like a line of its own.
        if not record.message.isprintable():
            record.message = record.message.translate(_ESCAPED)
        ids, line = ids_told_of(), super().formatMessage(record)
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        return f"{line} [{', '.join(ids[:SHOWN])}{more}]" if ids else line

    def formatException(self, ei: Any) -> str:
        """Return the traceback."""
        return "\n".join(f"    {line.translate(_ESCAPED)}" for line in super().formatException(ei).split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time` (UTC), `level`, `logger`, `message`, `request_id` and the line's own facts.

    What an engine says of a step of several requests has `request_ids`, a list, instead.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if len(ids := ids_told_of()) == 1:
            told["request_id"] = ids[0]
        elif ids:
            told["request_ids"] = ids
        told |= getattr(record, FACTS, {})
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        # Paths and ids may hold half of a surrogate pair, which only escapes can say.
        return json.dumps(told, ensure_ascii=True, default=str)


FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}


def set_up_logging(level: str, log_format: str) -> None:
    """Write to standard error: what sglk says from `level` on, and warnings of everybody else."""
    # Who logged from which process, thread and task no line says, and to find out takes longer than to write one.
    logging.logProcesses = logging.logThreads = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[log_format]())
    # Does nothing where the program around has set up its own.
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("sglk").setLevel(logging.DEBUG if level == "trace" else getattr(logging, level.upper()))
