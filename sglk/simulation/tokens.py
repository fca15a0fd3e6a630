"""Tokens of answers that nobody computes: they depend on the request's own seed and their place in the answer."""

import math
from array import array
from functools import lru_cache
from itertools import count

import numpy as np

_STRIDE = 7919
"""A prime: answers of different requests do not run into each other."""


class MadeUpTokens:
    """A walk through the whole vocabulary in strides, which each answer begins at another place."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._stride = next(each for each in count(_STRIDE) if math.gcd(each, vocab_size) == 1)
        self._walk = array("I", (np.arange(vocab_size) * self._stride % vocab_size).astype(np.uintc).tobytes())
        self._back = pow(self._stride, -1, vocab_size)
        """Times a token is its place in the walk."""

    def one(self, seed: int, place: int) -> int:
        """Return the token at `place` of the answer with that seed."""
        return (seed + place * self._stride) % self._vocab_size

    def some(self, seed: int, place: int, length: int) -> "array[int]":
        """Return so many from `place` on."""
        start = (seed * self._back + place) % self._vocab_size
        end = start + length
        walk = self._walk if end <= self._vocab_size else self._walk * math.ceil(end / self._vocab_size)
        return walk[start:end]


made_up_tokens = lru_cache(maxsize=4)(MadeUpTokens)
"""The same once for each size of a vocabulary, since the walk takes a millisecond."""
