"""Token ids to text, as they come, without ever cutting a character.

Where the text of tokens is their bytes, joined, they are joined; elsewhere the last tokens are decoded again with each.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 6
"""Tokens before the new ones that decide how these are written (spaces, joined bytes)."""
WINDOW_TOKENS = 24
MAX_TAIL_TOKENS = 3
"""An incomplete UTF-8 character has at most 3 bytes, hence at most 3 tokens."""
MAX_PENDING_TOKENS = 16


class Decoder(Protocol):
    """The part of a tokenizer that the engine needs."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, with U+FFFD for bytes that are not UTF-8."""


class Detokenizer(Protocol):
    """Incremental decoding of one answer: the texts of all calls join to the text of its tokens.

    What may become a character with the tokens to come is held back, but only as long as it can.
    """

    def push(self, token: int) -> str:
        """Take one token; return the text that is certain now."""

    def flush(self) -> str:
        """Return what is held back; the answer is complete."""


class Speller(Decoder, Protocol):
    """A decoder that may be one of those whose text is the bytes of its tokens, joined."""

    @property
    def joins_bytes(self) -> bool:
        """Whether it is; the rest is for those alone."""

    @property
    def drops_first_space(self) -> bool:
        """Whether a space at the start of a text is left out."""

    def shown_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to a text: nothing for special and unknown tokens."""


def detokenizer_for(speller: Speller, context: Sequence[int]) -> Detokenizer:
    """Return a detokenizer for the answer to a prompt that ends in `context`."""
    return JoinedBytes(speller, context) if speller.joins_bytes else WindowDetokenizer(speller, context)


class JoinedBytes:
    """Joins the bytes of tokens, each of which is looked at once."""

    def __init__(self, speller: Speller, context: Iterable[int] = ()) -> None:
        self._shown = speller.shown_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._drops_space = speller.drops_first_space and not any(map(self._shown, context))

    def push(self, token: int) -> str:
        """Take one token; return the text that is certain now."""
        text = self._decode(self._shown(token))
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """Return what is held back; the answer is complete."""
        return self._decode(b"", True)


class WindowDetokenizer:
    """Incremental decoding of one answer, at a cost per token that does not grow with its length.

    Text that ends in U+FFFD is held back, since the next token may complete the character, but only as long as it
    can: what three more tokens did not complete is truly invalid and is let go.
    `context` are the last tokens of the prompt; some tokenizers write the first word differently without them.
    """

    def __init__(self, decoder: Decoder, context: Sequence[int] = ()) -> None:
        self._decode = decoder.decode
        self._window = list(context[-CONTEXT_TOKENS - MAX_TAIL_TOKENS :])
        self._window = self._window[self._start(len(self._window)) :]
        self._written = self._decode(self._window) if self._window else ""
        if self._written.endswith(REPLACEMENT):
            self._window, self._written = [], ""
        self._done = len(self._window)
        self._seen = self._written

    def push(self, token: int) -> str:
        """Take one token; return the text that is certain now."""
        self._window.append(token)
        text = self._decode(self._window)
        # Twice, as some tokenizers leave out one space at the start.
        if text == self._seen and not self._decode([token, token]):
            self._window.pop()  # A special token; it must not age the bytes that wait for their continuation.
            return ""
        self._seen = text
        if not text.endswith(REPLACEMENT):
            return self._emit(text, len(self._window))
        pending = len(self._window) - self._done
        if pending > MAX_PENDING_TOKENS:
            return self._emit(text, len(self._window))
        return self._let_go(text) if pending > MAX_TAIL_TOKENS else ""

    def flush(self) -> str:
        """Return what is held back; the answer is complete."""
        return self._emit(self._seen, len(self._window))

    def _emit(self, text: str, done: int) -> str:
        """Count the first `done` tokens of the window, which read `text`, as written."""
        delta = text[len(self._written) :]
        self._written, self._done = text, done
        if len(self._window) > WINDOW_TOKENS:
            start = self._start(done)
            self._window = self._window[start:]
            self._done -= start
            self._written = self._decode(self._window[: self._done])
            self._seen = self._decode(self._window)
        return delta

    def _start(self, done: int) -> int:
        """Return where the window may start: some tokens before `done`, and not within a character.

        Where tokens are single bytes, a cut character would spoil all that follow it without a gap.
        """
        start = max(0, done - CONTEXT_TOKENS)
        for at in range(start, max(-1, start - MAX_TAIL_TOKENS - 1), -1):
            if not self._decode(self._window[at:done]).startswith(REPLACEMENT):
                return at
        return start

    def _let_go(self, text: str) -> str:
        """Emit invalid bytes up to a cut that no later token can move."""
        for tail in range(MAX_TAIL_TOKENS, 0, -1):
            cut = len(self._window) - tail
            head = self._decode(self._window[:cut])
            if head + self._decode(self._window[cut:]) == text:
                return self._emit(head, cut)
        return ""
