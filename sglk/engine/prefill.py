"""The prompt tokens of one step: how many there may be, and who shares them."""

import logging
import sys
from dataclasses import dataclass, field

from sglk.cache.radix import Key
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import BatchRow

logger = logging.getLogger(__name__)

Lead = Key
"""Beginning of a prompt that other requests with the same beginning wait for while it is computed."""


@dataclass(slots=True)
class PrefillStep:
    """Prefill rows of a step while they are put together."""

    chunk: int
    """Most tokens of one request."""
    budget: int
    """Tokens that all requests together may still take."""
    most_scored: int
    """Most tokens whose logprobs are asked for: each takes a row of logits."""
    scored: int = 0
    """Those that are in the step."""
    rows: list[BatchRow] = field(default_factory=list)
    leads: dict[Lead, int] = field(default_factory=dict)
    """How many requests compute each of them."""

    @classmethod
    def beside(cls, decodes: int, chunk: int, budget: int, most_scored: int, page_size: int) -> "PrefillStep":
        """Return an empty step that keeps `decodes` of its tokens for requests that decode in it.

        Chunks stay whole pages, and one page stays for progress however many decode.
        """
        if decodes:
            least = min(chunk, page_size)
            chunk = max(least, (chunk - decodes) // page_size * page_size)
            budget = max(least, budget - decodes)
        return cls(chunk, budget, most_scored)

    def size(self, pending: int, scored: bool) -> int:
        """Return how many of a request's `pending` tokens, `scored` ones or not, the step takes; 0 = it is full.

        The first request always fits, so that a prompt which is not to be chunked may be longer than the budget.
        """
        size = min(pending, self.chunk, self.most_scored if scored else pending)
        fits = size <= self.budget and not (scored and self.scored + size > self.most_scored)
        return size if fits or not self.rows else 0

    def add(self, row: BatchRow, lead: Lead | None) -> None:
        """Take `row` into the step."""
        self.rows.append(row)
        self.budget -= len(row.input_ids)
        self.scored += len(row.scored)
        if lead is not None:
            self.leads[lead] = self.leads.get(lead, 0) + 1


def chunk_size(runtime: RuntimeConfig) -> int:
    """Return the most prompt tokens that one request computes in a step."""
    chunk, cap = runtime.chunked_prefill_size, runtime.max_prefill_tokens
    if chunk == -1:
        return sys.maxsize
    if chunk > cap:
        logger.warning("runtime.chunked_prefill_size=%d is above max_prefill_tokens=%d; using %d", chunk, cap, cap)
    return min(chunk, cap)
