"""Which replica has seen the beginning of a prompt: a bounded guess at its prefix cache, kept by the router."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

BLOCK_TOKENS = 64
"""Prefixes are compared in whole blocks of so many tokens."""

MAX_BLOCKS = 65536
"""Blocks remembered per replica, the latest ones (4 million tokens)."""


def block_keys(prompt_ids: Sequence[int]) -> list[int]:
    """Return a key for each whole block of the prompt that depends on all tokens up to its end."""
    return list(_chain(prompt_ids))


def _chain(prompt_ids: Sequence[int]) -> Iterator[int]:
    key = 0
    for start in range(0, len(prompt_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        key = hash((key, tuple(prompt_ids[start : start + BLOCK_TOKENS])))
        yield key


class SeenPrefixes:
    """The prompts that were sent to one replica lately; the least recently used are forgotten first."""

    def __init__(self, capacity: int = MAX_BLOCKS) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def matched(self, keys: Sequence[int]) -> int:
        """Return how many of a prompt's leading blocks were seen."""
        for count, key in enumerate(keys):
            if key not in self._blocks:
                return count
        return len(keys)

    def add(self, keys: Sequence[int]) -> None:
        """Remember a prompt that was sent."""
        # From the end: the beginning is shared by most, and so is the last to be forgotten.
        for key in reversed(keys):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, as a replica that starts again does."""
        self._blocks.clear()
