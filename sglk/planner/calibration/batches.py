"""Batches of a wanted shape, as the scheduler would hand them to a runner; what the KV pool holds does not matter."""

from collections.abc import Iterator, Sequence

from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.planner.cost.shape import StepShape

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
_DRAWN = SamplingParams(temperature=1.0, ignore_eos=True)
_STRIDE = 7919
"""A prime: neighbouring tokens are no neighbours in the embedding."""


def pages_needed(shape: StepShape, page_size: int) -> int:
    """Return the pages that the rows of `shape` hold."""
    return sum(-(-context // page_size) for context in _contexts(shape))


def batch_of(shape: StepShape, page_size: int, vocab_size: int) -> Batch:
    """Return a batch of `shape`, whose rows lie on pages of their own, from the first of the pool on.

    The first rows that decode sample, then prompt chunks, until there are `shape.logits` lines.
    """
    pages = _pages(shape, page_size)
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


def _pages(shape: StepShape, page_size: int) -> Iterator[Sequence[int]]:
    first = 0
    for context in _contexts(shape):
        count = -(-context // page_size)
        yield range(first, first + count)
        first += count
