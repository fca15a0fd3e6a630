"""What an upstream engine prints: passed on line by line under its name, and kept in a file that stays small."""

import logging
import math
import os
import threading
import time
from collections import deque
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_LOG_BYTES = 16 * 2**20
"""A longer log becomes `<name>.1`, in place of the one before it."""

MAX_LINE_BYTES = 8192
"""A longer line is passed on in pieces."""

REMEMBERED = 500
"""Lines among which the cause of an end is looked for."""

RECENT_S = 30.0
"""So long before the last line the cause of an end may have been told, once an engine serves."""


class OutputRelay(threading.Thread):
    """Reads a pipe to its end. Nothing that happens to the log stops it: a full pipe would stop the engine."""

    def __init__(self, source: int, log: Path, name: str, max_bytes: int = MAX_LOG_BYTES) -> None:
        """Take over `source`, the reading end, and call the engine `name` in our own log."""
        super().__init__(name=f"sglk-output-{name}", daemon=True)
        self._source = source
        self._log = log
        self._label = name
        self._max_bytes = max_bytes
        self._written = 0
        self._begun = b""
        self._said: deque[tuple[float, str]] = deque(maxlen=REMEMBERED)
        self._recent_s = math.inf

    @property
    def said(self) -> list[str]:
        """The last lines; after `forget` none from before it, and none said long before the last one."""
        lines = list(self._said)
        return [text for said_s, text in lines if lines[-1][0] - said_s <= self._recent_s]

    def forget(self) -> None:
        """Take nothing for the cause of what happens later, such as the failure of a request that was survived."""
        self._said.clear()
        self._recent_s = RECENT_S

    def run(self) -> None:
        """Relay until everybody who writes there has ended."""
        try:
            while data := os.read(self._source, 65536):
                self._keep(data)
                self._pass_on(data)
            if self._begun:
                self._say(self._begun)
        finally:
            os.close(self._source)

    def _keep(self, data: bytes) -> None:
        try:
            if self._written + len(data) > self._max_bytes:
                self._log.replace(self._log.with_name(f"{self._log.name}.1"))
                self._written = 0
            with self._log.open("ab") as file:
                file.write(data)
            self._written += len(data)
        except OSError as error:
            logger.error("%s: its log %s cannot be written: %s", self._label, self._log, error.strerror)

    def _pass_on(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._say(line)
        if len(self._begun) > MAX_LINE_BYTES:
            self._say(self._begun)
            self._begun = b""

    def _say(self, line: bytes) -> None:
        # A progress bar writes over itself: what stands there at the end counts.
        text = line.decode(errors="replace").rstrip().rpartition("\r")[2]
        if text.strip():
            self._said.append((time.monotonic(), text))
            logger.info("%s | %s", self._label, text)
