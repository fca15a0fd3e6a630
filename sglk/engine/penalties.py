"""How often each token occurs in one request, and what the penalties make of that."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sglk.engine.messages import SamplingParams

FIRST_CAPACITY = 64


class TokenCounts:
    """Distinct tokens of a request in order of appearance, each with its number of occurrences in the answer.

    Kept in arrays that grow with the request, so that a step costs what is new, and nothing per vocabulary entry.
    """

    def __init__(self) -> None:
        self._ids = np.zeros(FIRST_CAPACITY, np.int64)
        self._counts = np.zeros(FIRST_CAPACITY, np.float32)
        self._places: dict[int, int] = {}

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The distinct tokens."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of them occurs in the answer; 0 for tokens of the prompt alone."""
        return self._counts[: len(self._places)]

    def add(self, token: int, count: int) -> None:
        """Take one more token, which counts `count` times (a prompt's token does not count)."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token
        self._counts[place] += count


class Penalties:
    """Repetition, presence and frequency penalty of one request.

    The counts follow the request's own tokens, which only ever grow: a step that is computed twice, or a request that
    is retracted and comes back, changes nothing.
    """

    def __init__(self, sampling: SamplingParams, prompt_length: int) -> None:
        self._repetition = sampling.repetition_penalty
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._prompt_length = prompt_length
        # The prompt matters to the repetition penalty alone.
        self._seen = 0 if self._repetition != 1 else prompt_length
        self._counts = TokenCounts()

    def follow(self, tokens: Sequence[int]) -> None:
        """Count the tokens of prompt and answer that are new since the last time."""
        for place in range(self._seen, len(tokens)):
            self._counts.add(tokens[place], int(place >= self._prompt_length))
        self._seen = len(tokens)

    def changes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the penalised ids, the factor by which each logit shrinks, and what is added to it then."""
        counts = self._counts.counts
        offsets = -(self._presence * (counts > 0) + self._frequency * counts).astype(np.float32)
        return self._counts.ids, np.full(len(counts), self._repetition, np.float32), offsets


def penalises(sampling: SamplingParams) -> bool:
    """Return whether any penalty has an effect."""
    return sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
