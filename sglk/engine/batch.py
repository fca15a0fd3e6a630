"""One step's work as the scheduler hands it to a runner: no tensors, no device."""

from collections.abc import Sequence
from dataclasses import dataclass

from sglk.engine.messages import SamplingParams


@dataclass(slots=True)
class BatchRow:
    """The part of one request that is computed in this step."""

    request_id: str
    input_ids: Sequence[int]
    """Tokens to compute: a prompt chunk, or the one token generated last."""
    start: int
    """Position of the first of them, that is, the number of tokens whose KV is already in the pool."""
    pages: Sequence[int]
    """Pages of the KV pool that hold positions 0 .. start + len(input_ids) - 1, in order."""
    sampling: SamplingParams
    seed: int
    """Resolved sampling seed of the request."""
    num_generated: int
    """Tokens generated before this step; together with `seed` it fixes the random draw."""
    samples: bool
    """Whether the step yields a token for this row; False for all but the last chunk of a prompt."""


@dataclass(slots=True)
class Batch:
    """Rows of one forward pass, prefills first, then decodes (one input token each)."""

    rows: list[BatchRow]
    num_prefills: int

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(row.input_ids) for row in self.rows)
