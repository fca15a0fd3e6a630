"""One streamed answer while it arrives: its text, its tokens and their times."""

import math

from sglk.bench.api import Piece

_CHARACTERS_PER_TOKEN = 4


class Answer:
    """Adds up the pieces of an answer; times are those of one clock, in seconds."""

    def __init__(self, *, cumulative: bool) -> None:
        self._cumulative = cumulative
        self._pieces = 0
        self.text = ""
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.gaps_s: list[float] = []
        self.prompt_tokens: int | None = None
        self.reported_tokens: int | None = None
        """Generated tokens, as the server counts them."""
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None

    def take(self, piece: Piece, at: float) -> None:
        """Add a piece that arrived at time `at`."""
        text = piece.text[len(self.text) :] if self._cumulative else piece.text
        grown = (piece.completion_tokens or 0) > (self.reported_tokens or 0)
        # A token may show no text yet, in the middle of a character; the count then tells. An event that carries
        # usage alone closes the stream and is no token.
        if text or (grown and piece.has_choice):
            self._mark(at)
        self.text += text
        self.prompt_tokens = _latest(piece.prompt_tokens, self.prompt_tokens)
        self.reported_tokens = _latest(piece.completion_tokens, self.reported_tokens)
        self.cached_tokens = _latest(piece.cached_tokens, self.cached_tokens)
        self.finish_reason = piece.finish_reason or self.finish_reason

    def message(self) -> str:
        """Return the text as it can be sent back; halves of a character that came in two events are joined."""
        return self.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    @property
    def empty(self) -> bool:
        """Whether nothing was generated: no text came, and no token was counted."""
        return not self.text and not self.reported_tokens

    def tokens(self, asked: int) -> tuple[int, bool]:
        """Return the number of generated tokens, and whether it is an estimate.

        Without usage, an answer that ended for its length has the tokens that were asked for. Else it has at least
        one per piece, and about one per four characters where pieces hold several.
        """
        if self.reported_tokens is not None:
            return self.reported_tokens, False
        if self.finish_reason == "length" and self.text:
            return asked, True
        return min(asked, max(self._pieces, math.ceil(len(self.text) / _CHARACTERS_PER_TOKEN))), True

    def _mark(self, at: float) -> None:
        self._pieces += 1
        if self.first_at is None:
            self.first_at = at
        if self.last_at is not None:
            self.gaps_s.append(at - self.last_at)
        self.last_at = at


def _latest(new: int | None, old: int | None) -> int | None:
    return old if new is None else new
