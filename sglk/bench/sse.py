"""Server-sent events, as the HTML standard defines them, from bytes that arrive cut anywhere."""


class SseParser:
    """Turns chunks of bytes into the data of whole events.

    An event may arrive in several chunks and a chunk may hold several events; lines end in LF, CRLF or CR; comments
    and other fields than `data` are skipped; several data lines join with a newline.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._at_start = True

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of the events that `chunk` completes, in order."""
        lines = (self._rest + chunk).splitlines(keepends=True)
        self._rest = b""
        # A lone CR at the end may be the first half of a CRLF.
        if lines and not lines[-1].endswith(b"\n"):
            self._rest = lines.pop()
        return [event for line in lines if (event := self._take(line)) is not None]

    def close(self) -> list[str]:
        """Return the data of a last event that the server sent without the empty line after it."""
        events = self.feed(b"\n") if self._rest else []
        if (event := self._take(b"\n")) is not None:
            events.append(event)
        return events

    def _take(self, line: bytes) -> str | None:
        text = line.rstrip(b"\r\n").decode("utf-8", errors="replace")
        if self._at_start:
            text, self._at_start = text.removeprefix("\ufeff"), False
        if not text:
            event, self._data = "\n".join(self._data), []
            return event or None
        name, _, value = text.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None
