"""Keys of the prefix cache."""

from array import array
from collections.abc import Iterable

from sglk.cache.radix import Key


def key_of(tokens: Iterable[int]) -> Key:
    return array("I", tokens).tobytes()
