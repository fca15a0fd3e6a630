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


def can_be_summed(spec: ModelSpec, size: int, fp8_activations: bool) -> bool:
    """Return whether each of `size` ranks can compute its part of every sum out of a block, of the inputs that it has.

    `spec` is that of one part. Not where a whole token's activations share a scale, columns are in an order of their
    own, or a group of inputs with a scale would be cut; `fp8_activations` = the device rounds activations in fp8 too.
    """
    quantization = spec.quantization
    schemes = {quantization.default, *quantization.layers.values()} - {None}
    inputs = {spec.num_attention_heads * spec.head_dim, *split_sizes(spec).widths}
    return all(
        _can_be_cut(scheme, each, size, fp8_activations) for scheme in schemes if scheme is not None for each in inputs
    )


def _can_be_cut(scheme: LinearScheme, inputs: int, pieces: int, fp8_activations: bool) -> bool:
    """Return whether a matrix can have `inputs` in each of so many pieces; 4-bit values come in pairs."""
    one_scale = scheme.width(inputs * pieces) == inputs * pieces
    of_tokens = scheme.kind == "w8a8" or (scheme.kind == "fp8" and fp8_activations)
    width = (2 if scheme.kind == "w4a16" else 1) if one_scale else scheme.group_size
    return scheme.order == "" and not (one_scale and of_tokens) and inputs % width == 0


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
