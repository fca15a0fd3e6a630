"""Conversations in ShareGPT's form: a JSON list of objects with `conversations`, lists of `from` and `value`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sglk.bench.trace import opened
from sglk.config.home import expanded
from sglk.errors import ConfigError

_ASKS = ("human", "user")
_ANSWERS = ("gpt", "chatgpt", "assistant", "bing", "bard")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a user said and what was answered."""

    question: str
    answer: str


def read_sharegpt(file: str) -> Iterator[tuple[Exchange, ...]]:
    """Yield the exchanges of each conversation that begins with one; raises ConfigError for another kind of file.

    A conversation counts up to its first message that is empty or out of turn; what comes before the first question,
    such as a system prompt, does not.
    """
    try:
        with opened(expanded(file)) as text:
            entries = json.load(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"workload.file={file!r} is not JSON; ShareGPT files are one JSON list") from None
    if not isinstance(entries, list):
        raise ConfigError(f"workload.file={file!r} holds no list; ShareGPT files are a JSON list of conversations")
    if not entries:
        raise ConfigError(f"workload.file={file!r} is empty; give a file with at least one conversation")
    for number, entry in enumerate(entries, 1):
        messages = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(messages, list):
            raise ConfigError(
                f"workload.file={file!r}: entry {number} has no list `conversations`; ShareGPT files have one in each"
            )
        found = tuple(_exchanges(messages))
        if found:
            yield found


def _exchanges(messages: list[Any]) -> Iterator[Exchange]:
    said = [(str(each.get("from")), each.get("value")) for each in messages if isinstance(each, dict)]
    start = next((place for place, (role, _) in enumerate(said) if role in _ASKS), len(said))
    for (asks, question), (answers, answer) in zip(said[start::2], said[start + 1 :: 2], strict=False):
        in_turn = asks in _ASKS and answers in _ANSWERS
        if not (in_turn and isinstance(question, str) and isinstance(answer, str)):
            return
        if not (question.strip() and answer.strip()):
            return
        yield Exchange(_whole(question), _whole(answer))


def _whole(text: str) -> str:
    """Return `text` with `?` for halves of surrogate pairs: such files have emoji that were cut, which is no text."""
    return text.encode(errors="replace").decode()
