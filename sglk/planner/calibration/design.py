"""Which steps are measured: few shapes that tell all quantities of a step apart, up to the largest that is served."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sglk.config.schema import RuntimeConfig
from sglk.planner.cost.shape import StepShape

_FILLED = 1.5
"""Between two powers of two one more size, so that a left-out one has neighbours."""

_SHORT = 32
"""Tokens of the short prompts that share a step."""

_SMALL_CONTEXT = 64

_FEW_ROWS = 16
"""Up to so many each number of rows is measured."""

_CHUNK_RATIOS = (1, 4, 16)
"""Chunks behind a context: the largest, a quarter of it, and what is left of a prompt that the cache knows mostly."""


_CHUNKS_A_STEP = 4
"""A step may take chunks of several requests; more of them go on as the line ends."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The largest steps of a deployment."""

    tokens: int
    """Prompt tokens of one step."""
    chunk: int
    """Prompt tokens of one request in one step."""
    rows: int
    """Requests that decode together."""
    context: int
    """Tokens of one request."""
    pool: int
    """KV tokens of all requests together."""
    page_size: int

    @classmethod
    def of(cls, runtime: RuntimeConfig, context_length: int, pool: int, most_context: int) -> "Reach":
        """Return what `runtime` allows, with no context above `most_context`."""
        context = min(context_length, pool, most_context)
        chunk = context if runtime.chunked_prefill_size == -1 else min(runtime.chunked_prefill_size, context)
        chunk = min(chunk, runtime.max_prefill_tokens)
        tokens = min(max(chunk, runtime.max_prefill_tokens), pool, max(chunk, _CHUNKS_A_STEP * chunk))
        return cls(tokens, chunk, runtime.max_running_requests, context, pool, runtime.page_size)

    def holds(self, shape: StepShape) -> bool:
        """Return whether the pool has room for the rows of a step, each in whole pages."""
        contexts = [context for _, context in shape.prefills] + list(shape.decodes)
        if any(context > self.context for context in contexts):
            return False
        pages = sum(-(-context // self.page_size) for context in contexts)
        return pages * self.page_size <= self.pool


def families(reach: Reach) -> list[list[StepShape]]:
    """Return the shapes in families, each from small to large: where one takes too long the rest are left out.

    Mixed steps are among them whatever `enable_mixed_chunk` says: a simulation asks what it would change.
    """
    found = [
        _chunks(reach),
        _without_logits(reach),
        _several_prompts(reach),
        *_behind_contexts(reach),
        _several_behind_contexts(reach),
        *_decodes(reach),
        *_every_count(reach),
        _sharing(reach),
        _ragged(reach),
        _drawn(reach),
        _mixed(reach),
    ]
    seen: set[StepShape] = set()
    fresh: list[list[StepShape]] = []
    for family in found:
        shapes = [shape for shape in dict.fromkeys(family) if reach.holds(shape) and shape not in seen]
        seen.update(shapes)
        fresh.append(shapes)
    return [family for family in fresh if family]


def sizes(most: int, least: int = 1) -> list[int]:
    """Return powers of two with one size between each two, from `least` on, and `most`."""
    found, size = {most}, least
    while size <= most:
        found |= {size, min(most, int(size * _FILLED))}
        size *= 2
    return sorted(found)


def _chunks(reach: Reach) -> list[StepShape]:
    return [StepShape(((tokens, tokens),), logits=1) for tokens in sizes(reach.chunk)]


def _without_logits(reach: Reach) -> list[StepShape]:
    tokens = [size for size in (1, 8, 64, 256) if size <= reach.chunk]
    return [StepShape(((size, size),)) for size in tokens]


def _several_prompts(reach: Reach) -> list[StepShape]:
    """Many short prompts have many lines of logits with few pairs; long ones together make the largest steps."""
    short, long = min(_SHORT, reach.chunk), max(1, reach.chunk // 2)
    counts = [count for count in (2, 4, 8, 16) if count <= reach.rows]
    shapes = [StepShape(((short, short),) * count, logits=count) for count in counts if count * short <= reach.tokens]
    return shapes + [
        StepShape(((long, long),) * count, logits=count)
        for count in range(2, min(reach.rows, reach.tokens // long) + 1)
        if count & (count - 1) == 0 or count == reach.tokens // long
    ]


def _behind_contexts(reach: Reach) -> Iterator[list[StepShape]]:
    for ratio in _CHUNK_RATIOS:
        new = max(1, reach.chunk // ratio)
        contexts = [size for size in _doublings(max(_SMALL_CONTEXT, new), reach.context) if size > new]
        yield [StepShape(((new, context),), logits=1) for context in contexts]


def _several_behind_contexts(reach: Reach) -> list[StepShape]:
    """Several requests that share a beginning which the cache has."""
    new = min(_SHORT, reach.chunk)
    cached = (reach.context // 4) // reach.page_size * reach.page_size
    return [StepShape(((new, cached + new),) * count, logits=count) for count in (2, 4, 8) if count <= reach.rows]


def _decodes(reach: Reach) -> Iterator[list[StepShape]]:
    """Yield, for each number of rows, contexts up to the longest; the pool may be too small for some."""
    for index, rows in enumerate(sizes(reach.rows)):
        contexts = _doublings(16, reach.context, factor=4 if index % 2 else 8)
        largest = reach.pool // rows // reach.page_size * reach.page_size
        yield [StepShape(decodes=(context,) * rows, logits=rows) for context in sorted({*contexts, largest}) if context]


def _every_count(reach: Reach) -> Iterator[list[StepShape]]:
    """Yield those few rows that no other family has: kernels take rows in tiles, so one row more may cost nothing."""
    few = set(range(1, min(_FEW_ROWS, reach.rows) + 1)) - set(sizes(reach.rows))
    for rows in sorted(few):
        contexts = sorted({_SMALL_CONTEXT, max(_SMALL_CONTEXT, reach.context // 4)})
        yield [StepShape(decodes=(context,) * rows, logits=rows) for context in contexts]


def _sharing(reach: Reach) -> list[StepShape]:
    """Rows behind one beginning, which is in the processor's cache when the second of them reads it."""
    own = min(_SHORT, reach.context // 2)
    common = (reach.context // 4) // reach.page_size * reach.page_size
    counts = [count for count in sizes(reach.rows, least=2) if common]
    return [StepShape(decodes=(common + own,) * rows, logits=rows, shared=common * (rows - 1)) for rows in counts]


def _ragged(reach: Reach) -> list[StepShape]:
    """Rows of different lengths: what is padded to the longest shows here."""
    long = min(reach.context, reach.pool // 2)
    found = []
    for rows in _doublings(4, reach.rows):
        found.append((long,) + (_SMALL_CONTEXT,) * (rows - 1))
        found.append(tuple(max(1, long * (index + 1) // rows) for index in range(rows)))
    return [StepShape(decodes=decodes, logits=len(decodes)) for decodes in found]


def _drawn(reach: Reach) -> list[StepShape]:
    rows = sorted({1, max(1, reach.rows // 2), reach.rows})
    return [StepShape(decodes=(_SMALL_CONTEXT,) * count, logits=count, drawn=count) for count in rows]


def _mixed(reach: Reach) -> list[StepShape]:
    return [
        StepShape(((new, new),), (_SMALL_CONTEXT * 2,) * rows, logits=rows + 1)
        for rows in sorted({max(1, reach.rows // 4), reach.rows})
        for new in sorted({max(1, reach.chunk // 8), max(1, reach.chunk // 2)})
    ]


def _doublings(first: int, most: int, factor: int = 2) -> list[int]:
    found: list[int] = []
    size = first
    while size < most:
        found.append(size)
        size *= factor
    return [*found, most] if first <= most else [most]


def count(families_: Sequence[Sequence[StepShape]]) -> int:
    """Return how many shapes there are."""
    return sum(map(len, families_))
