"""The events of a stream: how many there are, what they tell of usage, and whether the last one is its end."""

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

DONE = b"[DONE]"

ENDS = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed", "error"})
"""Types of the last events of `/v1/messages` and `/v1/responses`, which know no [DONE]."""

ENDED = frozenset({"/v1/completions", "/v1/chat/completions", "/generate", "/v1/messages", "/v1/responses"})
"""Routes whose streams say that they are complete; of others nothing is known but that HTTP has ended in order."""

_KEPT = 8
"""Events among the last of which one tells the usage."""


class Events:
    """Takes a stream piece by piece."""

    def __init__(self) -> None:
        self._open = b""
        self._last: deque[bytes] = deque(maxlen=_KEPT)

    def feed(self, piece: bytes) -> int:
        """Take the next bytes; returns how many events they complete."""
        *ended, self._open = (self._open + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        told = [data for event in ended if (data := _data(event))]
        self._last += told
        return len(told)

    def is_complete(self, path: str) -> bool:
        """Return whether the stream, which has ended, is one with its end; `path` is the route that it came from."""
        self.feed(b"\n\n")
        last = self._last[-1] if self._last else b""
        if last == DONE or path.partition("?")[0] not in ENDED:
            return True
        event = _parsed(last)
        return bool(event.get("error")) or event.get("type") in ENDS

    def usage(self) -> Mapping[str, Any]:
        """Return the counts of the last event that has them."""
        return next(filter(None, map(usage_of, reversed(self._last))), {})


def usage_of(answer: bytes) -> Mapping[str, Any]:
    """Return the counts of an answer or event, by the names of OpenAI's completions, whichever API it is of."""
    if b'"usage"' not in answer and b'"meta_info"' not in answer:
        return {}
    body = _parsed(answer)
    inner = body.get("response")
    found = body.get("usage") or body.get("meta_info") or (inner.get("usage") if isinstance(inner, dict) else None)
    if not isinstance(found, dict):
        return {}
    return {str(_NAMES.get(name, name)): value for name, value in found.items()}


_NAMES = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
}


def _data(event: bytes) -> bytes:
    return b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))


def _parsed(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
