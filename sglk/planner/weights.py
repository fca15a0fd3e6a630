"""Bytes of a model's weights on one device, part by part, as the layers of `sglk.layers` declare them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from sglk.backends.schemes import LinearScheme
from sglk.config.model_size import has_head_norms
from sglk.models.part import part_of_spec
from sglk.models.spec import ModelSpec, MoeSpec
from sglk.planner.dtypes import BYTES
from sglk.planner.kinds import StoredKinds, filled
from sglk.planner.latent import TO_HEADS, absorbed, matrices, norm_width

_VOCABULARY_ROWS = 64
"""`DEFAULT_VOCAB_PADDING_SIZE` of both."""

_DENSE, _ROUTED, _SHARED = ("", ""), ("_exps", ".experts.0"), ("_shexp", ".shared_experts")
"""What the names of a feed-forward block have in them: those of llama.cpp, those of checkpoints."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes on one device."""

    embedding: int
    head: int
    """0 where the embedding's matrix serves as the head's."""
    attention: int
    feed_forward: int
    """Experts and their routers included."""
    norms: int
    absorbed: int = 0
    """What an engine has of latent attention's matrices a second time."""

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(int(getattr(self, field.name)) for field in fields(self))


LeftOut = Callable[[str], bool]


def _nothing(_name: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Layout:
    """How an engine lays matrices out on its devices."""

    kinds: StoredKinds | None = None
    """Kinds of the files' matrices, where those that are in the compute dtype are kept in their own bits."""
    gathers: bool = False
    """Whether of a projection out of a block a rank has some outputs, not some inputs."""
    rows: int = 1
    """Multiple that the outputs of a matrix are filled up to."""
    launched: bool = False
    """Whether it is that of SGLang and vLLM, which divide embedding and head by the vocabulary."""
    block_rows: int = 1
    """Outputs that share their scales."""
    left_out: LeftOut = _nothing
    """Which linear layers stay in the compute dtype, by their names in checkpoints."""
    views: bool = False
    """Whether what decoding takes of latent attention needs no memory where it is in the compute dtype."""


OURS = Layout()

Bytes = Callable[[tuple[str, ...], int, int], int]
"""Of a product: llama.cpp's names of the matrices that are stacked for it, its outputs and its inputs."""


@dataclass(frozen=True, slots=True)
class _Forms:
    """What matrices take: those of linear layers, those of experts, and all others."""

    linear: Bytes
    expert: Bytes
    plain: Bytes
    item: int
    """Bytes of one number of everything else."""
    gathering: int
    """Ranks that share the outputs of projections out of a block; 1 = none do."""
    left_out: LeftOut

    def of(self, form: Bytes, name: str) -> Bytes:
        """Return the form of the linear layer of that name, where its kind has `form`."""
        return self.plain if self.left_out(name) else form

    def out(self, form: Bytes, name: str, outputs: int, inputs: int) -> int:
        """Return the bytes of a projection out of a block, of whose inputs a rank has so many."""
        return form((name,), -(-outputs // self.gathering), inputs * self.gathering)


def weights_of(
    spec: ModelSpec,
    dtype: str,
    scheme: LinearScheme | None,
    ranks: int,
    layout: Layout = OURS,
    head: LinearScheme | None = None,
) -> Weights:
    """Return what each of `ranks` holds of the model that `spec` describes, which can be split over them.

    `scheme` is that of the linear layers, `head` that of the output head; embedding, norms, biases and routers are
    always in `dtype`, and all but the projections of the blocks are on every rank, where `layout` does not divide the
    vocabulary.
    """
    part, forms = part_of_spec(spec, ranks), _forms(dtype, scheme, ranks, layout)
    layers = range(spec.num_hidden_layers)
    tokens = -(-padded_vocabulary(spec) // ranks) if layout.launched else spec.vocab_size
    return Weights(
        embedding=forms.plain(("token_embd",), tokens, spec.hidden_size),
        head=_head(replace(spec, vocab_size=tokens), forms, head, layout.rows),
        attention=sum(_attention(part, layer, forms) for layer in layers),
        feed_forward=sum(_feed_forward(part, layer, forms) for layer in layers),
        norms=_norms(spec) * forms.item,
        absorbed=sum(_absorbed(part, layer, scheme, layout) for layer in layers) * forms.item,
    )


def padded_vocabulary(spec: ModelSpec) -> int:
    """Return the rows of embedding and head together on all ranks of SGLang and vLLM (`VocabParallelEmbedding`)."""
    return filled(spec.vocab_size, _VOCABULARY_ROWS)


def _forms(dtype: str, scheme: LinearScheme | None, ranks: int, layout: Layout) -> _Forms:
    item, rows, kinds = BYTES[dtype], layout.rows, layout.kinds
    gathering = ranks if layout.gathers else 1

    def plain(names: tuple[str, ...], outputs: int, inputs: int) -> int:
        return filled(outputs, rows) * inputs * item

    def quantised(names: tuple[str, ...], outputs: int, inputs: int) -> int:
        assert scheme is not None
        return scheme.num_bytes(filled(outputs, rows), inputs, layout.block_rows)

    kept, experts = (plain, plain) if kinds is None else (kinds.matrix, kinds.expert)
    if layout.gathers:
        # They run one by one, as linear layers do.
        experts = kept
    if scheme is not None:
        return _Forms(quantised, quantised, kept, item, gathering, layout.left_out)
    return _Forms(kept, experts, kept, item, gathering, layout.left_out)


def _head(spec: ModelSpec, forms: _Forms, scheme: LinearScheme | None, rows: int) -> int:
    if scheme is not None:
        return scheme.num_bytes(filled(spec.vocab_size, rows), spec.hidden_size)
    return 0 if spec.tie_word_embeddings else forms.plain(("output",), spec.vocab_size, spec.hidden_size)


def _absorbed(part: ModelSpec, layer: int, scheme: LinearScheme | None, layout: Layout) -> int:
    if part.latent is None or (layout.views and (scheme is None or layout.left_out(_attention_name(layer, TO_HEADS)))):
        return 0
    return absorbed(part, part.latent)


def _attention_name(layer: int, name: str) -> str:
    return f"model.layers.{layer}.self_attn.{name}"


def _attention(part: ModelSpec, layer: int, forms: _Forms) -> int:
    block = f"blk.{layer}"
    if part.latent is not None:
        shapes = matrices(part, part.latent)
        return sum(forms.of(forms.linear, _attention_name(layer, name))((), *shape) for name, *shape in shapes)
    hidden, head = part.hidden_size, part.head_dim
    query, keys = part.num_attention_heads * head, part.num_key_value_heads * head
    biases = (query + 2 * keys) * part.attention_bias + -(-hidden // forms.gathering) * part.attention_output_bias
    into, out = (forms.of(forms.linear, _attention_name(layer, name)) for name in ("q_proj", "o_proj"))
    inner = into(tuple(f"{block}.attn_{name}" for name in "qkv"), query + 2 * keys, hidden)
    return inner + forms.out(out, f"{block}.attn_output", hidden, query) + biases * forms.item


def _feed_forward(part: ModelSpec, layer: int, forms: _Forms) -> int:
    moe = part.moe
    if moe is not None and layer not in moe.dense_layers:
        return _experts(part, moe, layer, forms)
    width = part.intermediate_size
    biases = (2 * width + -(-part.hidden_size // forms.gathering)) * part.mlp_bias
    return _gated(part.hidden_size, width, layer, _DENSE, forms.linear, forms) + biases * forms.item


def _experts(part: ModelSpec, moe: MoeSpec, layer: int, forms: _Forms) -> int:
    hidden, block = part.hidden_size, f"blk.{layer}"
    routed = moe.num_experts * _gated(hidden, moe.moe_intermediate_size, layer, _ROUTED, forms.expert, forms)
    router = forms.plain((f"{block}.ffn_gate_inp",), moe.num_experts, hidden)
    if moe.shared_expert_intermediate_size is None:
        return routed + router
    shared = _gated(hidden, moe.shared_expert_intermediate_size, layer, _SHARED, forms.linear, forms)
    gate = forms.plain((f"{block}.ffn_gate_inp_shexp",), 1, hidden) if moe.shared_expert_gate else 0
    return routed + router + shared + gate


def _gated(hidden: int, width: int, layer: int, kind: tuple[str, str], form: Bytes, forms: _Forms) -> int:
    (suffix, inside), block = kind, f"blk.{layer}"
    into, out = (forms.of(form, f"model.layers.{layer}.mlp{inside}.{name}_proj") for name in ("gate", "down"))
    inner = f"{block}.ffn_gate{suffix}", f"{block}.ffn_up{suffix}"
    return into(inner, 2 * width, hidden) + forms.out(out, f"{block}.ffn_down{suffix}", hidden, width)


def _norms(spec: ModelSpec) -> int:
    heads = 2 * spec.head_dim if has_head_norms(spec.architecture) else 0
    inner = heads if spec.latent is None else norm_width(spec.latent)
    return (2 * spec.num_hidden_layers + 1) * spec.hidden_size + spec.num_hidden_layers * inner


def schemes_by_size(schemes: frozenset[str]) -> Iterator[str]:
    """Yield schemes, those of 8 bits before that of 4."""
    yield from sorted(schemes, key=lambda kind: (kind == "w4a16", kind != "w8a8", kind))
