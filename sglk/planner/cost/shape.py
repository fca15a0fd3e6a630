"""What one engine step is made of, as far as its time depends on it."""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from sglk.engine.batch import Batch
    from sglk.engine.messages import SamplingParams

GREEDY_TEMPERATURE = 1e-4
"""At or below it a row takes its likeliest token, as `sglk.engine.sampler` has it (which needs torch)."""

Kind = Literal["prefill", "decode", "mixed"]


class StepShape(NamedTuple):
    """The rows of one step. Cheap to build, needs no torch, and can be a key."""

    prefills: tuple[tuple[int, int], ...] = ()
    """Of each prompt chunk: tokens to compute, and tokens of the request up to the last of them."""
    decodes: tuple[int, ...] = ()
    """Of each row that decodes one token: tokens of the request with the new one."""
    logits: int = 0
    """Lines of logits: one for each row that samples, and one for each prompt token whose logprob is asked for."""
    drawn: int = 0
    """Rows whose token chance decides."""
    shared: int = 0
    """Tokens of rows that decode which a row before them has read: those of a beginning that they share."""

    @classmethod
    def of(cls, batch: "Batch", page_size: int) -> "StepShape":
        """Return the shape of what the scheduler has put together, on pages of `page_size` tokens."""
        split, rows = batch.num_prefills, batch.rows
        prefills = []
        scored = 0
        for row in rows[:split]:
            new = len(row.input_ids)
            prefills.append((new, row.start + new))
            scored += len(row.scored)
        sampled = [row.sampling for row in rows if row.samples]
        decodes = rows[split:]
        shared = shared_pages([row.pages for row in decodes]) * page_size
        contexts = tuple([row.start + 1 for row in decodes])
        return cls(tuple(prefills), contexts, scored + len(sampled), drawn(sampled), shared)

    @property
    def kind(self) -> Kind:
        """Which rows there are."""
        if self.prefills:
            return "mixed" if self.decodes else "prefill"
        return "decode"

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return len(self.decodes) + sum([new for new, _ in self.prefills])

    @property
    def rows(self) -> int:
        """Requests that take part."""
        return len(self.prefills) + len(self.decodes)


def drawn(samplings: "Iterable[SamplingParams]") -> int:
    """Return how many of these choose their token by chance."""
    return sum([each.temperature > GREEDY_TEMPERATURE and each.top_k != 1 for each in samplings])


def shared_pages(rows: Sequence[Sequence[int]]) -> int:
    """Return how many of the pages of rows, in each at least one, are those of a row before them, too."""
    if len({pages[0] for pages in rows}) == len(rows):
        return 0
    # In order, what a row shares with any before it is what it shares with the last.
    ordered = sorted([list(pages) for pages in rows])
    return sum([_common(one, other) for one, other in itertools.pairwise(ordered)])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many pages two rows have in common: all up to the first that differs."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda place: one[place] != other[place])
