"""Batches of a wanted shape, as the scheduler would hand them to a runner; what the KV pool holds does not matter.

Its memory does. The operating system backs memory that was never written with one page of zeros, which stays in the
cache and is read in no time, so a pool has to be filled before anything that reads it is timed. Nor do rows share
pages, but where the shape says so: those of one layer are still in the cache when the next row reads them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.planner.cost.shape import StepShape

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
_DRAWN = SamplingParams(temperature=1.0, ignore_eos=True)
_STRIDE = 7919
"""A prime: neighbouring tokens are no neighbours in the embedding."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The pages that rows lie on, and the tokens that they are of."""

    pages: int
    page_size: int
    vocab_size: int

    @classmethod
    def for_shapes(cls, shapes: Iterable[StepShape], page_size: int, vocab_size: int) -> "Pool":
        """Return a pool in which the largest of `shapes` has room."""
        most = max(sum(-(-context // page_size) for context in _contexts(shape)) for shape in shapes)
        return cls(most, page_size, vocab_size)

    def filling(self, chunk: int) -> Iterator[Batch]:
        """Yield prompts of up to `chunk` tokens that together write every page, where nothing else can."""
        tokens = max(1, chunk // self.page_size) * self.page_size
        total = self.pages * self.page_size
        for start in range(0, total, tokens):
            size = min(tokens, total - start)
            yield self.batch(StepShape(((size, size),)), first_page=start // self.page_size)

    def batch(self, shape: StepShape, first_page: int = 0) -> Batch:
        """Return a batch of `shape`, whose rows lie on pages in a row.

        The first rows that decode sample, then prompt chunks, until there are `shape.logits` lines.
        """
        return _batch(shape, _pages(shape, self, first_page), self.vocab_size)


def _batch(shape: StepShape, pages: Iterator[Sequence[int]], vocab_size: int) -> Batch:
    chunks, split = len(shape.prefills), len(shape.prefills)
    samples = _sampling_rows(shape)
    rows = []
    for index, context in enumerate(_contexts(shape)):
        new = shape.prefills[index][0] if index < chunks else 1
        rows.append(
            BatchRow(
                request_id=str(index),
                input_ids=[(index + position) * _STRIDE % vocab_size for position in range(new)],
                start=context - new,
                pages=next(pages),
                sampling=_DRAWN if index in samples[: shape.drawn] else _GREEDY,
                seed=index,
                num_generated=0,
                samples=index in samples,
            )
        )
    return Batch(rows, split)


def _contexts(shape: StepShape) -> list[int]:
    return [context for _, context in shape.prefills] + list(shape.decodes)


def _sampling_rows(shape: StepShape) -> Sequence[int]:
    chunks, rows = len(shape.prefills), shape.rows
    return [*range(chunks, rows), *range(chunks)][: shape.logits]


def _pages(shape: StepShape, pool: Pool, first: int) -> Iterator[Sequence[int]]:
    """Yield the pages of each row; all that decode share one beginning, if any do."""
    common = shape.shared // max(1, len(shape.decodes) - 1) // pool.page_size
    beginning: Sequence[int] = ()
    for index, context in enumerate(_contexts(shape)):
        count = -(-context // pool.page_size)
        assert first + count <= pool.pages, "the pool has room for the shape"
        own: Sequence[int] = range(first, first + count)
        first += count
        if index >= len(shape.prefills):
            beginning = beginning or own[:common]
            own = [*beginning, *own[common:]]
        yield own
