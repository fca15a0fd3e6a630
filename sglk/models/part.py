"""The numbers of a model that is split over several ranks, and of the part of one. Needs no torch."""

from dataclasses import replace

from sglk.backends.schemes import LinearScheme
from sglk.config.tensor_parallel import SplitSizes
from sglk.models.spec import ModelSpec


def split_sizes(spec: ModelSpec) -> SplitSizes:
    """Return what is divided between the ranks."""
    moe = spec.moe
    widths = {spec.intermediate_size} if moe is None or moe.dense_layers else set()
    if moe is not None:
        widths |= {moe.moe_intermediate_size, moe.shared_expert_intermediate_size or moe.moe_intermediate_size}
    return SplitSizes(spec.num_attention_heads, spec.num_key_value_heads, frozenset(widths))


def quantised_splits(spec: ModelSpec, scheme: LinearScheme) -> list[int]:
    """Return the numbers of ranks that leave every group of inputs with a scale in `scheme` to one of them."""
    sizes = split_sizes(spec)
    inputs = {spec.num_attention_heads * spec.head_dim, *sizes.widths}
    return [size for size in sizes.allowed() if all(keeps_groups(scheme, each, size) for each in inputs)]


def keeps_groups(scheme: LinearScheme, inputs: int, pieces: int) -> bool:
    """Return whether each of `pieces` has whole groups, or part of the only one; act-order has none to keep.

    Four-bit values come in pairs.
    """
    width = 2 if scheme.kind == "w4a16" else 1
    if scheme.order == "" and scheme.width(inputs) != inputs:
        width = scheme.width(inputs)
    return pieces == 1 or inputs // pieces % width == 0


def part_of_spec(spec: ModelSpec, size: int) -> ModelSpec:
    """Return what one of `size` ranks has; key-value heads fewer than ranks are copied."""
    moe = spec.moe
    if moe is not None:
        shared = moe.shared_expert_intermediate_size
        moe = replace(
            moe,
            moe_intermediate_size=moe.moe_intermediate_size // size,
            shared_expert_intermediate_size=None if shared is None else shared // size,
        )
    return replace(
        spec,
        num_attention_heads=spec.num_attention_heads // size,
        num_key_value_heads=max(1, spec.num_key_value_heads // size),
        intermediate_size=spec.intermediate_size // size,
        moe=moe,
    )
