"""Tokens of a device that computes nothing: the sampling ops run, take their time, and their results are made up.

Letters: B rows, V vocabulary.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from sglk.backends.base import DeviceBackend
from sglk.engine.batch import BatchRow, RowResult
from sglk.engine.guide import Mask
from sglk.engine.logits import LogitChanges
from sglk.engine.logprobs import Scorer, Target
from sglk.engine.messages import TokenLogprob
from sglk.engine.sampler import Sampler, draws
from sglk.models.tokenizer import Tokenizer

MOST_WORDS = 1024
FEWEST_WORDS = 64
_WORD = re.compile(rb" [a-z]{2,}")
_LETTER = re.compile(rb"[ a-z]")
_QUOTE = re.compile(rb'"')
_BRACKET = re.compile(rb"[\]}]")
_BLANK = re.compile(rb"\s+")

TEXT_ODDS, ODDS = 8, 2
"""A guided answer ends a text once in so many tokens, anything else that may end sooner: so it comes to an end."""

FREE_WORDS = 16
"""Where a grammar allows more words than that, it is in the middle of a text."""

LAST_TOKENS = 8
"""The end of the text that decides on the next token, beside the number of tokens before it."""

LOGPROB = -1.0
"""Of a made-up token; each of the next likeliest is 1 less."""

_PRIME = (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class Words:
    """Tokens that answers are made of."""

    ordinary: Sequence[int]
    quotes: frozenset[int]
    brackets: frozenset[int]
    """Brackets that end a part of a JSON text."""
    blank: frozenset[int]
    """White space, which a grammar may allow without end."""
    ends: frozenset[int]
    """Tokens that end an answer."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, ends: frozenset[int]) -> "Words":
        """Return whole lower-case words where the vocabulary has some, else letters, else any ordinary tokens."""
        texts = [
            (token, tokenizer.token_bytes(token))
            for token in range(min(vocab_size, tokenizer.vocab_size))
            if token not in ends and not tokenizer.is_special(token)
        ]
        words = list(islice(_matching(texts, _WORD), MOST_WORDS))
        if len(words) < FEWEST_WORDS:
            words = list(_matching(texts, _LETTER)) or [token for token, text in texts if text]
        quotes, brackets, blank = (frozenset(_matching(texts, each)) for each in (_QUOTE, _BRACKET, _BLANK))
        return cls(words or range(vocab_size), quotes, brackets, blank, ends)


def _matching(texts: Sequence[tuple[int, bytes]], pattern: re.Pattern[bytes]) -> Iterator[int]:
    return (token for token, text in texts if pattern.fullmatch(text))


class InventedTokens(Sampler):
    """A Sampler whose tokens are functions of the request's own text, and of its seed where chance decides.

    They are words that mean nothing, follow the request's grammar, and do not depend on what else is in the batch. An
    answer that nothing else ends ends by itself after the backend's `answer_tokens`, unless the request ignores ends.
    Penalties and biases take their time and have no effect.
    """

    def __init__(self, backend: DeviceBackend, dtype: torch.dtype, vocab_size: int, words: Words) -> None:
        super().__init__(backend, dtype, vocab_size)
        self._backend = backend
        self._words = words
        self._scorer = _InventedLogprobs(backend, dtype, vocab_size)

    def pick(self, logits_BV: torch.Tensor, rows: Sequence[BatchRow], changes: LogitChanges) -> list[RowResult]:
        """Return a token per row once the device has passed the ops that choose it."""
        self._greedy(logits_BV)
        drawn = [index for index, row in enumerate(rows) if draws(row)]
        if drawn:
            self._draw(logits_BV[drawn], [rows[index] for index in drawn])
        self._backend.synchronize()
        masks = dict(zip(changes.masked_rows, changes.masks, strict=True))
        return [self._token(row, masks.get(index)) for index, row in enumerate(rows)]

    def _token(self, row: BatchRow, mask: Mask | None) -> int:
        state = text_state(row.tokens, row.seed + 1 if draws(row) else 0)
        if mask is not None:
            return self._allowed(_ids(mask, self._vocab_size), state)
        words = self._words
        last = max(self._backend.answer_tokens - 1, row.sampling.min_new_tokens)
        if words.ends and row.num_generated >= last and not row.sampling.ignore_eos:
            return min(words.ends)
        return words.ordinary[state % len(words.ordinary)]

    def _allowed(self, allowed: npt.NDArray[np.int64], state: int) -> int:
        """Return one of the tokens that a grammar allows: now and then one that ends something, else a word."""
        ids: list[int] = allowed.tolist()
        words = self._words
        spoken = sorted(set(words.ordinary).intersection(ids) - words.blank)
        closing, odds = words.ends | words.brackets, ODDS
        if len(spoken) > FREE_WORDS:
            closing, odds = words.ends | words.quotes, TEXT_ODDS
        ending = [token for token in ids if token in closing]
        others = spoken or [token for token in ids if token not in words.ends | words.blank]
        chosen = ending if ending and (not others or state % odds == 0) else others or ids
        return chosen[state // odds % len(chosen)]


class _InventedLogprobs(Scorer):
    """Gives every token the same logprob, and some of the others less."""

    def _score(self, logits_BV: torch.Tensor, targets: Sequence[Target]) -> list[TokenLogprob]:
        ids_B = torch.tensor([target.token for target in targets], device=self._device)
        self._logprobs(logits_BV[[target.line for target in targets]], ids_B, max(each.count for each in targets))
        vocab_size = logits_BV.shape[1]
        return [
            TokenLogprob(
                target.token,
                LOGPROB,
                tuple(((target.token + rank) % vocab_size, LOGPROB - rank) for rank in range(target.count)),
            )
            for target in targets
        ]


def text_state(tokens: Sequence[int], seed: int) -> int:
    """Return a number that the last tokens, their place in the text and `seed` decide on."""
    state = len(tokens) + (seed << 20)
    for token in tokens[-LAST_TOKENS:]:
        state = (state ^ token) * 6364136223846793005 % _PRIME
        state ^= state >> 29
    return state


def _ids(mask: Mask, vocab_size: int) -> npt.NDArray[np.int64]:
    """Return the tokens whose bit in `mask` is set."""
    bits = np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little")
    return np.flatnonzero(bits)
