"""Which ops a step of a model calls, with the work of each as a function of its tokens.

The order is that of `sglk.models.llama` and its layers; the work is that of `sglk.backends.work`, which the simulated
device takes its time from. Needs no torch.

Letters: T tokens, E hidden width, H query heads, K key/value heads, D head width, F feed-forward width, V vocabulary,
X experts, C experts of a token, L lines of logits.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sglk.backends import work
from sglk.backends.schemes import LinearScheme
from sglk.backends.work import Work, visited_experts
from sglk.backends.work_arguments import Shaped, StoredMatrix, nbytes
from sglk.config.model_size import has_head_norms
from sglk.models.part import part_of_spec
from sglk.models.spec import ModelSpec
from sglk.planner.cost.exchanges import Exchanged, exchanges_of

Part = Literal[
    "linear",
    "moe",
    "attention_prefill",
    "attention_decode",
    "collectives",
    "elementwise",
    "sampling",
    "layers",
    "step",
    "host",
]
"""What a step's time is the sum of.

`elementwise` = norms, rotation, activation, embedding and the store of new KV; `layers` and `step` = fixed times of
each;  `host` = scheduling, answers and what competes for the host.
"""


@dataclass(frozen=True, slots=True)
class OpLine:
    """Calls of one op, whose work is a straight line over the step's tokens (or lines of logits)."""

    part: Part
    name: str
    fixed: Work
    each: Work
    """What one token adds."""
    stored: float = 0.0
    """Bytes of all experts' weights, of which the visited ones are read."""
    experts: int = 0
    top_k: int = 0

    def at(self, count: int) -> Work:
        """Return the work of one call with `count` tokens."""
        moved = self.fixed.bytes + count * self.each.bytes
        if self.experts:
            moved += self.stored * visited_experts(count, self.experts, self.top_k) / self.experts
        return Work(self.fixed.flops + count * self.each.flops, moved, self.each.dtype)


@dataclass(frozen=True)
class StepOps:
    """All ops of one rank's step but attention, with how often a step calls each."""

    trunk: dict[OpLine, int]
    """By the step's tokens."""
    head: dict[OpLine, int]
    """By its lines of logits."""
    drawing: dict[OpLine, int]
    """By the rows whose token chance decides."""
    exchanges: dict[Exchanged, int]
    """What the ranks bring together, by the step's tokens."""


@dataclass(frozen=True)
class _Maker:
    spec: ModelSpec
    """What one rank has."""
    dtype: str
    kv_dtype: str
    scheme: LinearScheme | None
    gathering: int
    """Ranks that share the outputs of projections out of a block and bring their inputs together; 1 = none do."""

    def tensor(self, *shape: int) -> Shaped:
        return Shaped(shape, self.dtype)


def step_ops(
    spec: ModelSpec,
    dtype: str,
    kv_dtype: str,
    scheme: LinearScheme | None,
    ranks: int = 1,
    gathers: bool = False,
    head: LinearScheme | None = None,
) -> StepOps:
    """Return the ops of one of `ranks` that hold the model, whose linear layers are quantised by `scheme`.

    The output head is by `head`; `gathers` as in `exchanges_of`. Experts that gather run one by one, and count as the
    op that runs all.
    """
    maker = _Maker(part_of_spec(spec, ranks), dtype, kv_dtype, scheme, ranks if gathers else 1)
    trunk = Counter(_around_layers(maker)) + _calls(_attention_block(maker), spec.num_hidden_layers)
    layers = range(spec.num_hidden_layers)
    sparse = 0 if spec.moe is None else sum(layer not in spec.moe.dense_layers for layer in layers)
    if sparse:
        trunk += _calls(_sparse_block(maker), sparse)
    if sparse < spec.num_hidden_layers:
        trunk += _calls(_dense_block(maker), spec.num_hidden_layers - sparse)
    exchanges = Counter(exchanges_of(spec, dtype, ranks, gathers))
    return StepOps(trunk, Counter(_head(replace(maker, scheme=head))), Counter(_drawing(maker)), exchanges)


def _calls(lines: Iterable[OpLine], layers: int) -> Counter[OpLine]:
    """Return how often so many like layers call each of `lines`."""
    return Counter({line: calls * layers for line, calls in Counter(lines).items()})


def _line(part: Part, name: str, work_at: Callable[[int], Work]) -> OpLine:
    """Return the line through the work of one and of two tokens."""
    one, two = work_at(1), work_at(2)
    each = Work(two.flops - one.flops, two.bytes - one.bytes, one.dtype)
    return OpLine(part, name, Work(one.flops - each.flops, one.bytes - each.bytes, one.dtype), each)


def _linear(maker: _Maker, outputs: int, inputs: int, bias: bool = False, plain: bool = False) -> OpLine:
    scheme = None if plain else maker.scheme
    bias_O = maker.tensor(outputs) if bias else None
    if scheme is None:
        weight_OE = maker.tensor(outputs, inputs)
        return _line("linear", "linear", lambda tokens: work.linear(maker.tensor(tokens, inputs), weight_OE, bias_O))
    name, stored = f"linear_{scheme.kind}", StoredMatrix((outputs, inputs), scheme.num_bytes(outputs, inputs))
    formula = work.FORMULAS[name]
    return _line("linear", name, lambda tokens: formula(maker.tensor(tokens, inputs), stored, bias_O))


def _out(maker: _Maker, inputs: int, bias: bool) -> OpLine:
    """Return a projection out of a block, of whose inputs a rank has so many."""
    return _linear(maker, -(-maker.spec.hidden_size // maker.gathering), inputs * maker.gathering, bias)


def _around_layers(maker: _Maker) -> Iterator[OpLine]:
    spec = maker.spec
    weight_VE, weight_E = maker.tensor(spec.vocab_size, spec.hidden_size), maker.tensor(spec.hidden_size)
    yield _line("elementwise", "embedding", lambda tokens: work.embedding(Shaped((tokens,), "int64"), weight_VE))
    yield _line(
        "elementwise", "rms_norm", lambda tokens: work.rms_norm(maker.tensor(tokens, spec.hidden_size), weight_E, 0)
    )


def _attention_block(maker: _Maker) -> Iterator[OpLine]:
    spec, width = maker.spec, maker.spec.head_dim
    heads, kv_heads = spec.num_attention_heads, spec.num_key_value_heads
    yield _linear(maker, (heads + 2 * kv_heads) * width, spec.hidden_size, spec.attention_bias)
    if has_head_norms(spec.architecture):
        for count in (heads, kv_heads):
            yield _head_norm(maker, count)
            yield _rope(maker, count)
    else:
        yield _rope(maker, heads + kv_heads)
    yield _line("elementwise", "store_kv", lambda tokens: _store_kv(maker, tokens))
    yield _out(maker, heads * width, spec.attention_output_bias)
    yield _add_norm(maker)


def _head_norm(maker: _Maker, heads: int) -> OpLine:
    weight_D = maker.tensor(maker.spec.head_dim)
    return _line(
        "elementwise",
        "rms_norm",
        lambda tokens: work.rms_norm(maker.tensor(tokens, heads, maker.spec.head_dim), weight_D, 0),
    )


def _rope(maker: _Maker, heads: int) -> OpLine:
    width = maker.spec.head_dim

    def at(tokens: int) -> Work:
        angles_TD = maker.tensor(tokens, width)
        return work.rope(maker.tensor(tokens, heads, width), angles_TD, angles_TD)

    return _line("elementwise", "rope", at)


def _store_kv(maker: _Maker, tokens: int) -> Work:
    spec = maker.spec
    new_TKD = maker.tensor(tokens, spec.num_key_value_heads, spec.head_dim)
    pool_SKD = Shaped((1, spec.num_key_value_heads, spec.head_dim), maker.kv_dtype)
    scales = True if maker.kv_dtype == "int8" else None
    return work.store_kv(new_TKD, new_TKD, pool_SKD, pool_SKD, Shaped((tokens,), "int64"), scales)


def _add_norm(maker: _Maker) -> OpLine:
    weight_E = maker.tensor(maker.spec.hidden_size)

    def at(tokens: int) -> Work:
        x_TE = maker.tensor(tokens, maker.spec.hidden_size)
        return work.add_rms_norm(x_TE, x_TE, weight_E, 0)

    return _line("elementwise", "add_rms_norm", at)


def _dense_block(maker: _Maker) -> Iterator[OpLine]:
    yield from _gated(maker, maker.spec.intermediate_size, maker.spec.mlp_bias)
    yield _add_norm(maker)


def _sparse_block(maker: _Maker) -> Iterator[OpLine]:
    spec, moe = maker.spec, maker.spec.moe
    assert moe is not None
    yield _linear(maker, moe.num_experts, spec.hidden_size, plain=True)
    yield _line(
        "moe",
        "route",
        lambda tokens: work.route(maker.tensor(tokens, moe.num_experts), moe.num_experts_per_tok, moe.norm_topk_prob),
    )
    yield _experts(maker)
    if moe.shared_expert_intermediate_size is not None:
        yield from _shared_expert(maker, moe.shared_expert_intermediate_size)
    yield _add_norm(maker)


def _gated(maker: _Maker, width: int, bias: bool) -> Iterator[OpLine]:
    hidden = maker.spec.hidden_size
    yield _linear(maker, 2 * width, hidden, bias)
    yield _line("elementwise", "silu_and_mul", lambda tokens: work.silu_and_mul(maker.tensor(tokens, 2 * width)))
    yield _out(maker, width, bias)


def _shared_expert(maker: _Maker, width: int) -> Iterator[OpLine]:
    hidden = maker.spec.hidden_size
    yield _linear(maker, 1, hidden, plain=True)
    yield from _gated(maker, width, bias=False)

    def at(tokens: int) -> Work:
        x_TE = maker.tensor(tokens, hidden)
        return work.add_gated(x_TE, maker.tensor(tokens, 1), x_TE)

    yield _line("elementwise", "add_gated", at)


def _experts(maker: _Maker) -> OpLine:
    """Return the experts' line; what their weights add grows with the visited ones instead."""
    spec, moe, scheme = maker.spec, maker.spec.moe, maker.scheme
    assert moe is not None
    experts, hidden, width = moe.num_experts, spec.hidden_size, moe.moe_intermediate_size
    name = "run_experts" if scheme is None else "run_quantised_experts"

    def at(tokens: int) -> Work:
        x_TE = maker.tensor(tokens, hidden)
        chosen = Shaped((tokens, moe.num_experts_per_tok), "fp32"), Shaped((tokens, moe.num_experts_per_tok), "int64")
        if scheme is None:
            gate_up, down = maker.tensor(experts, 2 * width, hidden), maker.tensor(experts, hidden, width)
            found = work.run_experts(x_TE, gate_up, down, *chosen)
        else:
            found = work.run_quantised_experts(x_TE, *_stored(), *chosen, experts, scheme.kind)
        read = stored * visited_experts(tokens, experts, moe.num_experts_per_tok) / experts
        return Work(found.flops, found.bytes - read, found.dtype)

    def _stored() -> tuple[StoredMatrix, StoredMatrix]:
        assert scheme is not None
        shapes = (experts * 2 * width, hidden), (experts * hidden, width)
        gate_up, down = (StoredMatrix(shape, scheme.num_bytes(*shape)) for shape in shapes)
        return gate_up, down

    if scheme is None:
        stored = nbytes(maker.tensor(experts, 2 * width, hidden), maker.tensor(experts, hidden, width))
    else:
        stored = sum(matrix.nbytes for matrix in _stored())
    line = _line("moe", name, at)
    return OpLine("moe", name, line.fixed, line.each, stored, experts, moe.num_experts_per_tok)


def _head(maker: _Maker) -> Iterator[OpLine]:
    spec = maker.spec
    yield _linear(maker, spec.vocab_size, spec.hidden_size)
    yield _line("sampling", "greedy", lambda lines: work.greedy(maker.tensor(lines, spec.vocab_size)))


def _drawing(maker: _Maker) -> Iterator[OpLine]:
    def at(rows: int) -> Work:
        floats, whole = Shaped((rows,), "fp32"), Shaped((rows,), "int64")
        return work.sample(maker.tensor(rows, maker.spec.vocab_size), floats, whole, floats, floats, floats)

    yield _line("sampling", "sample", at)
