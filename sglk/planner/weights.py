"""Bytes of a model's weights on one device, part by part, as the layers of `sglk.layers` declare them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from sglk.backends.schemes import LinearScheme
from sglk.models.part import part_of_spec
from sglk.models.spec import ModelSpec, MoeSpec
from sglk.planner.dtypes import BYTES

Matrix = tuple[int, int]
"""Outputs and inputs."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes on one device."""

    embedding: int
    head: int
    """0 where the embedding serves as the head."""
    attention: int
    feed_forward: int
    """Experts and their routers included."""
    norms: int

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(int(getattr(self, field.name)) for field in fields(self))


def weights_of(spec: ModelSpec, dtype: str, scheme: LinearScheme | None, ranks: int) -> Weights:
    """Return what each of `ranks` holds of the model that `spec` describes, which can be split over them.

    `scheme` is that of the linear layers; embedding, head, norms, biases and routers are always in `dtype`, and all
    but the projections of the blocks are on every rank.
    """
    part, item = part_of_spec(spec, ranks), BYTES[dtype]
    return Weights(
        embedding=spec.vocab_size * spec.hidden_size * item,
        head=0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size * item,
        attention=spec.num_hidden_layers * _attention(part, scheme, item),
        feed_forward=_feed_forward(part, scheme, item),
        norms=_norms(spec) * item,
    )


def _attention(part: ModelSpec, scheme: LinearScheme | None, item: int) -> int:
    hidden, head = part.hidden_size, part.head_dim
    query, keys = part.num_attention_heads * head, part.num_key_value_heads * head
    biases = (query + 2 * keys) * part.attention_bias + hidden * part.attention_output_bias
    return _linear([(query + 2 * keys, hidden), (hidden, query)], scheme, item) + biases * item


def _feed_forward(part: ModelSpec, scheme: LinearScheme | None, item: int) -> int:
    layers, moe = part.num_hidden_layers, part.moe
    if moe is None:
        return layers * _mlp(part, part.intermediate_size, scheme, item)
    dense = sum(layer in moe.dense_layers for layer in range(layers))
    plain = dense * _mlp(part, part.intermediate_size, scheme, item) if dense else 0
    return plain + (layers - dense) * _experts(part, moe, scheme, item)


def _mlp(part: ModelSpec, width: int, scheme: LinearScheme | None, item: int, bias: bool | None = None) -> int:
    hidden = part.hidden_size
    biases = (2 * width + hidden) * (part.mlp_bias if bias is None else bias)
    return _linear(_gated(hidden, width), scheme, item) + biases * item


def _experts(part: ModelSpec, moe: MoeSpec, scheme: LinearScheme | None, item: int) -> int:
    routed = moe.num_experts * _linear(_gated(part.hidden_size, moe.moe_intermediate_size), scheme, item)
    router = moe.num_experts * part.hidden_size * item
    if moe.shared_expert_intermediate_size is None:
        return routed + router
    shared = _mlp(part, moe.shared_expert_intermediate_size, scheme, item, bias=False)
    return routed + router + shared + part.hidden_size * item


def _gated(hidden: int, width: int) -> list[Matrix]:
    return [(2 * width, hidden), (hidden, width)]


def _linear(matrices: list[Matrix], scheme: LinearScheme | None, item: int) -> int:
    if scheme is None:
        return sum(outputs * inputs * item for outputs, inputs in matrices)
    return sum(scheme.num_bytes(outputs, inputs) for outputs, inputs in matrices)


def _norms(spec: ModelSpec) -> int:
    """Count the numbers of all norms; Qwen3 has one for each of query and key heads in every layer."""
    heads = 2 * spec.head_dim if spec.architecture.startswith("Qwen3") else 0
    return (2 * spec.num_hidden_layers + 1) * spec.hidden_size + spec.num_hidden_layers * heads


def schemes_by_size(schemes: frozenset[str]) -> Iterator[str]:
    """Yield schemes, those of 8 bits before that of 4."""
    yield from sorted(schemes, key=lambda kind: (kind == "w4a16", kind != "w8a8", kind))
