"""Streams as servers send them: events of the three interfaces, and the ways to cut them into reads."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

Usage = Literal["final", "each", "none"]
Piece = tuple[str, int]
"""Text, and how many tokens it is."""

THREE_OF_FIVE: Sequence[Piece] = (("Hello there,", 5), (" how are", 5), (" you?", 5))
PROMPT_TOKENS, CACHED_TOKENS = 7, 3


def events(api: str, pieces: Sequence[Piece], usage: Usage, finish: str | None = "stop") -> list[str]:
    """Return the data of each event of one answer, `[DONE]` included."""
    make = {"generate": _generate, "completions": _completions, "chat": _chat}[api]
    return [json.dumps(event) for event in make(pieces, usage, finish)] + ["[DONE]"]


def _generate(pieces: Sequence[Piece], usage: Usage, finish: str | None) -> list[dict[str, Any]]:
    out, text, tokens = [], "", 0
    for index, (more, count) in enumerate(pieces):
        text, tokens = text + more, tokens + count
        last = index == len(pieces) - 1
        meta: dict[str, Any] = {"id": "x", "finish_reason": {"type": finish} if last and finish else None}
        if usage == "each" or (usage == "final" and last):
            meta |= {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "cached_tokens": CACHED_TOKENS}
        out.append({"text": text, "meta_info": meta})
    return out


def _completions(pieces: Sequence[Piece], usage: Usage, finish: str | None) -> list[dict[str, Any]]:
    return _openai([{"text": text} for text, _ in pieces], {"text": ""}, pieces, usage, finish)


def _chat(pieces: Sequence[Piece], usage: Usage, finish: str | None) -> list[dict[str, Any]]:
    choices: list[dict[str, Any]] = [{"delta": {"content": text}} for text, _ in pieces]
    role: dict[str, Any] = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    if usage == "each":
        role["usage"] = _usage(0)
    return [role, *_openai(choices, {"delta": {}}, pieces, usage, finish)]


def _openai(
    choices: list[dict[str, Any]],
    closing: dict[str, Any],
    pieces: Sequence[Piece],
    usage: Usage,
    finish: str | None,
) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    tokens = 0
    for choice, (_, count) in zip(choices, pieces, strict=True):
        tokens += count
        event: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": None, **choice}], "usage": None}
        out.append(event | {"usage": _usage(tokens)} if usage == "each" else event)
    if finish:
        out.append({"choices": [{"index": 0, "finish_reason": finish, **closing}]})
    if usage != "none":
        out.append({"choices": [], "usage": _usage(tokens)})
    return out


def _usage(tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }


def _one_each(data: list[str]) -> list[bytes]:
    return [f"data: {item}\n\n".encode() for item in data]


def _all_at_once(data: list[str]) -> list[bytes]:
    return [b"".join(_one_each(data))]


def _cut_in_the_middle(data: list[str]) -> list[bytes]:
    whole = b"".join(_one_each(data))
    return [whole[start : start + 23] for start in range(0, len(whole), 23)]


def _crlf(data: list[str]) -> list[bytes]:
    return [event.replace(b"\n", b"\r\n") for event in _one_each(data)]


def _with_comments(data: list[str]) -> list[bytes]:
    return [b": keepalive\n\n" + event for event in _one_each(data)]


FRAMINGS: dict[str, Callable[[list[str]], list[bytes]]] = {
    "one event a read": _one_each,
    "all in one read": _all_at_once,
    "cut in the middle": _cut_in_the_middle,
    "CRLF": _crlf,
    "comments": _with_comments,
}
