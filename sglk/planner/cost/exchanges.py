"""What the ranks of a model bring together in a step, as `sglk.models.llama` and its layers do. Needs no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sglk.backends.sim_rates import Link
from sglk.models.spec import ModelSpec
from sglk.planner.dtypes import BYTES


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One point of a step where ranks meet: a sum, or lines that are laid side by side of the parts that each has."""

    gathered: bool
    token_bytes: int
    """What every rank has of one token afterwards, parts filled up to one size included."""


@dataclass(frozen=True, slots=True)
class Links:
    """What so many ranks meet over, at the rate of a chip's link."""

    link: Link
    ranks: int

    def seconds(self, exchanges: Mapping[Exchanged, int], tokens: int) -> float:
        """Return the seconds of `exchanges`, each so many times, in a step of `tokens`."""
        allgather_s, allreduce_s = self.link.allgather_s, self.link.allreduce_s
        return sum(
            calls * (allgather_s if each.gathered else allreduce_s)(tokens * each.token_bytes, self.ranks)
            for each, calls in exchanges.items()
        )


def exchanges_of(spec: ModelSpec, dtype: str, ranks: int, gathers: bool) -> Iterator[Exchanged]:
    """Yield the exchanges of a step of the model that `spec` describes on `ranks`, in order.

    `gathers`: the inputs and the outputs of projections out of a block come together, else their sums do.
    """
    if ranks == 1:
        return

    def lines(width: int, count: int = 1) -> Exchanged:
        each = -(-width // ranks) * ranks if gathers else width
        return Exchanged(gathers, count * each * BYTES[dtype])

    for layer in range(spec.num_hidden_layers):
        if gathers:
            yield lines(spec.num_attention_heads * spec.head_dim)
        yield lines(spec.hidden_size)
        if gathers:
            for width, count in _inner_widths(spec, layer):
                yield lines(width, count)
        yield lines(spec.hidden_size)


def _inner_widths(spec: ModelSpec, layer: int) -> Iterator[tuple[int, int]]:
    """Yield the inner widths of a layer's feed-forward blocks, each with how many of a token's lines have it."""
    moe = spec.moe
    if moe is None or layer in moe.dense_layers:
        yield spec.intermediate_size, 1
        return
    yield moe.moe_intermediate_size, moe.num_experts_per_tok
    if moe.shared_expert_intermediate_size is not None:
        yield moe.shared_expert_intermediate_size, 1
