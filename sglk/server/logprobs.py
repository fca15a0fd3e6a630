"""Logprobs in the forms of the routes.

A list always has one entry per token, tokens without text included. Probability 0 is LOGPROB_FLOOR (-9999.0), since
JSON has no infinities; the first token of a prompt has no logprob and is null.
"""

import codecs
from collections.abc import Sequence
from typing import Any

from sglk.engine.messages import TokenLogprob
from sglk.server.spelling import Spelling

Scored = Sequence[tuple[int, TokenLogprob | None]]
"""Token ids with what is known of each."""


class CompletionLogprobs:
    """`logprobs` of `/v1/completions`, for one answer that comes in pieces."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def piece(self, scored: Scored) -> dict[str, list[Any]]:
        """Return the object for the next tokens; `text_offset` counts the characters that are complete before each."""
        return {
            "tokens": [self._spelling.text(token) for token, _ in scored],
            "token_logprobs": [known and known.logprob for _, known in scored],
            "top_logprobs": [known and self._top(known) for _, known in scored],
            "text_offset": [self._advance(token) for token, _ in scored],
        }

    def _top(self, known: TokenLogprob) -> dict[str, float]:
        """Return the likeliest tokens, and the token itself where it is none of them."""
        top = {self._spelling.text(token): logprob for token, logprob in known.top}
        return top | {self._spelling.text(known.token_id): known.logprob}

    def _advance(self, token: int) -> int:
        start = self._offset
        self._offset += len(self._decoder.decode(self._spelling.shown(token)))
        return start


def chat_logprobs(spelling: Spelling, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return `logprobs` of `/v1/chat/completions` for some tokens."""
    content = [
        {
            **_chat_token(spelling, known.token_id, known.logprob),
            "top_logprobs": [_chat_token(spelling, token, logprob) for token, logprob in known.top],
        }
        for known in logprobs
    ]
    return {"content": content, "refusal": None}


def _chat_token(spelling: Spelling, token: int, logprob: float) -> dict[str, Any]:
    data = spelling.data(token)
    return {"token": spelling.text(token), "logprob": logprob, "bytes": list(data) if data else None}


NativeToken = tuple[float | None, int, str | None]
"""SGLang's form: logprob, token id, and the text if asked for."""


def native_tokens(scored: Scored, spelling: Spelling | None) -> list[NativeToken]:
    """Return `input_token_logprobs` or `output_token_logprobs`; `spelling` adds the texts."""
    return [
        (known.logprob if known else None, token, spelling.text(token) if spelling else None) for token, known in scored
    ]


def native_top(scored: Scored, spelling: Spelling | None) -> list[list[NativeToken] | None]:
    """Return `input_top_logprobs` or `output_top_logprobs`."""
    return [
        None
        if known is None
        else [(logprob, token, spelling.text(token) if spelling else None) for token, logprob in known.top]
        for _, known in scored
    ]
