"""How much attention a step has to do, as numbers that any price can be put on. Needs no torch.

Letters: H query heads, K key/value heads, D head width.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from sglk.backends import work
from sglk.backends.work_arguments import Shaped
from sglk.models.part import part_of_spec
from sglk.models.spec import ModelSpec
from sglk.planner.cost.shape import StepShape


@dataclass(frozen=True, slots=True)
class AttentionOp:
    """What one call of an attention op costs, by what its rows come to."""

    dtype: str
    pair_flops: float
    """For each pair of a query and a token that it sees."""
    query_bytes: float
    """For each query: itself and its result."""
    token_bytes: float
    """For each token that some query of its row sees: its keys and values."""


class Seen(NamedTuple):
    """What the rows of one op come to in a layer of one window."""

    queries: int
    pairs: int
    """Pairs of a query and a token that it sees."""
    tokens: int
    """Tokens that some query of their row sees."""


def attention_op(spec: ModelSpec, dtype: str, kv_dtype: str, ranks: int = 1) -> AttentionOp:
    """Return the costs on one of `ranks`, from the formula of the simulated device."""
    part = part_of_spec(spec, ranks)
    q_THD = Shaped((1, part.num_attention_heads, part.head_dim), dtype)
    pool_SKD = Shaped((1, part.num_key_value_heads, part.head_dim), kv_dtype)
    scales = True if kv_dtype == "int8" else None

    query, pair, token = (
        work.attention_of(q_THD, pool_SKD, pairs, tokens, scales) for pairs, tokens in ((0, 0), (1, 0), (0, 1))
    )
    return AttentionOp(query.dtype, pair.flops, query.bytes, token.bytes - query.bytes)


def windows_of(spec: ModelSpec) -> dict[int | None, int]:
    """Return how many layers have each sliding window; None = none."""
    return Counter(spec.sliding_windows) or Counter({None: spec.num_hidden_layers})


def prefill_seen(shape: StepShape, window: int | None) -> Seen:
    """Return what the prompt chunks of a step see, as `work.visible_pairs` and `visible_tokens` count it."""
    queries = pairs = tokens = 0
    for new, context in shape.prefills:
        queries += new
        if window is None or context <= window:
            pairs += new * context - new * (new - 1) // 2
            tokens += context
            continue
        full = min(new, context - window + 1)
        rest = new - full
        pairs += full * window + rest * (context - full) - rest * (rest - 1) // 2
        tokens += min(context, new + window - 1)
    return Seen(queries, pairs, tokens)


def decode_seen(shape: StepShape, window: int | None) -> Seen:
    """Return what the rows that decode see: one query each."""
    contexts = shape.decodes
    tokens = sum(contexts) if window is None else sum([min(context, window) for context in contexts])
    return Seen(len(contexts), tokens, tokens)
