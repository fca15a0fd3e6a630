"""Stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Cuts a text at the first stop string that is completed, and emits nothing that may still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        """The stop string that ended the text."""
        self._stops = tuple(stops)
        self._beginnings = frozenset(stop[:length] for stop in stops for length in range(1, len(stop)))
        self._longest = max(map(len, stops), default=1) - 1
        self._held = ""

    def push(self, text: str) -> str:
        """Take a piece of text; return what is certain to be part of the answer."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return text[: end - len(self.matched)]
        held = self._beginning_at_end(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """Return what is held back; the answer ended without a match."""
        held, self._held = self._held, ""
        return held

    def _beginning_at_end(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0
