"""Token ids for texts without a tokenizer: as many as its words have on average, the same for the same beginning."""

from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

from sglk.bench.prompts import Message
from sglk.bench.workload import TOKENS_PER_WORD

_FRAME = ("header", "role", "end of header")
_END = ("end of message", "line break")

TEMPLATE_TOKENS = 2 * len(_FRAME) + len(_END)
"""What one message and the beginning of its answer take beside their text, about as ChatML has it."""

Ids = tuple[int, ...]


def message_ids(messages: Iterable[Message], vocab_size: int) -> Ids:
    """Return the tokens of `messages` and of the header of the answer to them."""
    ids: list[int] = []
    for message in messages:
        ids += _signs(_FRAME, message.role, vocab_size)
        ids += text_ids(message.content, vocab_size)
        ids += _signs(_END, "", vocab_size)
    return (*ids, *_signs(_FRAME, "assistant", vocab_size))


def end_ids(vocab_size: int) -> Ids:
    """Return the tokens that close an answer."""
    return _signs(_END, "", vocab_size)


def text_ids(text: str, vocab_size: int) -> list[int]:
    """Return about TOKENS_PER_WORD ids a word; a code has one for each of its signs."""
    return [each for word in text.split() for each in _word_ids(word, vocab_size)]


@lru_cache(maxsize=65536)
def _word_ids(word: str, vocab_size: int) -> Ids:
    name = crc32(word.encode())
    if any(sign.isdigit() for sign in word):
        count = len(word)
    else:
        # The same share of all words has a second token, whichever words they are.
        count = int(TOKENS_PER_WORD) + (name % 1000 < 1000 * (TOKENS_PER_WORD % 1))
    return tuple(crc32(f"{word}\0{part}".encode()) % vocab_size for part in range(count))


def _signs(names: tuple[str, ...], role: str, vocab_size: int) -> Ids:
    return tuple(crc32(f"{name}\0{role}".encode()) % vocab_size for name in names)
