"""What one prompt is made of: token ids drawn from a vocabulary, or words drawn from the corpus.

Everything is drawn through `Draw`, so a name (seed, salt, place) fixes it for good.
"""

import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from sglk.bench.corpus import INSTRUCTIONS, QUESTIONS, SENTENCES

T = TypeVar("T")

_WIDTH = array("I").itemsize

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, or messages; never both."""

    packed: bytes = b""
    """The token ids, by `pack`: prompts of a run, as numbers of Python's, are more than a processor keeps at hand."""
    messages: tuple[Message, ...] = ()

    @property
    def token_ids(self) -> "array[int]":
        """The token ids, none for messages."""
        return array("I", self.packed)

    @property
    def num_ids(self) -> int:
        """How many there are."""
        return len(self.packed) // _WIDTH

    def then(self, *messages: Message) -> "Prompt":
        """Return the prompt with `messages` after it."""
        return Prompt(self.packed, self.messages + messages)

    def transcript(self) -> str:
        """Return the messages as plain text, for interfaces that know no chat."""
        if len(self.messages) == 1:
            return self.messages[0].content
        return "\n\n".join(f"{message.role}: {message.content}" for message in self.messages) + "\n\nassistant:"


def pack(token_ids: Iterable[int]) -> bytes:
    """Return `token_ids` as a prompt has them."""
    return array("I", token_ids).tobytes()


class Draw:
    """A stream of random choices that its name alone decides.

    Built on `random.Random.random`, the one method whose sequence Python promises to keep between versions.
    """

    def __init__(self, *name: object) -> None:
        self._source = random.Random("/".join(map(str, name)))
        self._random = self._source.random

    def below(self, bound: int) -> int:
        """Return a whole number in [0, bound)."""
        return int(self._random() * bound)

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        return self._random()

    def bits(self, count: int) -> bytes:
        """Return what the next `count` numbers are made of."""
        return self._source.getrandbits(64 * count).to_bytes(8 * count, "little")

    def pick(self, options: Sequence[T]) -> T:
        """Return one of `options`."""
        return options[self.below(len(options))]

    def length(self, longest: int, ratio: float) -> int:
        """Return a length uniform in [ratio * longest, longest], at least 1."""
        shortest = max(1, round(ratio * longest))
        return shortest + self.below(longest - shortest + 1)

    def code(self) -> str:
        """Return eight hexadecimal digits."""
        return f"{self.below(1 << 32):08x}"


def all_below(bound: int, bits: bytes) -> npt.NDArray[np.uintc]:
    """Return what `below` of a Draw would return instead of `bits`, at once; `bound` is below 2 ** 32.

    A number is made of two words of the generator, as Python makes it: 27 bits of the first, 26 of the second.
    """
    pairs = np.frombuffer(bits, "<u8")
    # To divide by a power of 2 rounds nothing, so that the order does not matter.
    return (((pairs & 0xFFFFFFE0) << 21 | pairs >> 38) * (bound / (1 << 53))).astype(np.uintc)


@dataclass(frozen=True)
class Vocabulary:
    """The token ids that a server knows, and those among them that mean more than text."""

    size: int
    special_ids: frozenset[int] = frozenset()

    @property
    def is_ordinary(self) -> bool:
        """Whether most of the ids to draw from are ordinary tokens; else drawing may never end."""
        margin = self.size // 64
        span = range(margin, self.size - margin)
        return 2 * sum(token in span for token in self.special_ids) < len(span)

    def draw(self, draw: Draw, length: int) -> bytes:
        """Return `length` ids of ordinary tokens, packed."""
        return self.draw_each([draw], [length])[0]

    def draw_each(self, draws: Sequence[Draw], lengths: Sequence[int]) -> list[bytes]:
        """Return what `draw` would return for each, which takes a third of the time where prompts are short.

        Special tokens that the server does not list sit at the ends of every vocabulary in use, so 1/64 of it is left
        out at either end.
        """
        margin = self.size // 64
        span = self.size - 2 * margin
        special = [token for token in self.special_ids if margin <= token < margin + span]
        if special:
            return [_without(special, draw, margin, span, length) for draw, length in zip(draws, lengths, strict=True)]
        bits = b"".join([draw.bits(length) for draw, length in zip(draws, lengths, strict=True)])
        ids = margin + all_below(span, bits)
        ends = list(accumulate(lengths, initial=0))
        return [ids[start:end].tobytes() for start, end in pairwise(ends)]


def _without(special: Sequence[int], draw: Draw, margin: int, span: int, length: int) -> bytes:
    found: list[int] = []
    while missing := length - len(found):
        ids = margin + all_below(span, draw.bits(missing))
        found += ids[~np.isin(ids, special)].tolist()
    return pack(found)


def words(draw: Draw, count: int, sentences: Sequence[str] = SENTENCES) -> str:
    """Return a text of `count` words, whole sentences except for the last one."""
    text: list[str] = []
    while len(text) < count:
        text += draw.pick(sentences).split()
    return " ".join(text[:count])


_CODE_WORDS = 6
"""A code is cut into about as many tokens as six words."""


def user_text(draw: Draw, count: int) -> str:
    """Return what a user asks, about `count` words; the code at its start makes it unlike any other."""
    code = f"Case {draw.code()}."
    question = draw.pick(QUESTIONS)
    room = count - _CODE_WORDS - len(question.split())
    if room < 1:
        return f"{code} {words(draw, max(1, count - _CODE_WORDS))}"
    return f"{code} {words(draw, room)} {question}"


def system_text(draw: Draw, count: int) -> str:
    """Return a system prompt of about `count` words, unlike any other from its start."""
    return f"Desk {draw.code()}. {words(draw, max(1, count - _CODE_WORDS), INSTRUCTIONS)}"
