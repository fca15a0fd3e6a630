"""Architecture numbers from the metadata of a GGUF file."""

from sglk.errors import ModelLoadError
from sglk.models.fields import MOST_EXPERTS, MOST_HEAD_WIDTH, MOST_LAYERS, Fields
from sglk.models.gguf_file import GgufFile, shortest
from sglk.models.gguf_rope import read_rope
from sglk.models.rope_scaling import normalise_rope
from sglk.models.spec import ModelSpec, MoeSpec

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
"""`general.architecture` to the class name of config.json; `llama` with experts is Mixtral."""


def read_gguf_spec(file: GgufFile) -> ModelSpec:
    """Return the spec of the model in `file`; raises ModelLoadError naming the file and the key at fault."""
    metadata = Fields(file.metadata, str(file.path))
    kind = _architecture(metadata)
    hidden, heads = metadata.integer(f"{kind}.embedding_length"), metadata.integer(f"{kind}.attention.head_count")
    kv_heads = metadata.integer(f"{kind}.attention.head_count_kv", heads)
    if heads % kv_heads:
        raise metadata.wrong(f"{kind}.attention.head_count_kv", f"a divisor of {heads} attention heads")
    head_dim = metadata.integer(f"{kind}.attention.key_length", hidden // heads, most=MOST_HEAD_WIDTH)
    if head_dim % 2:
        wanted = f"even (positions turn pairs), and heads are {head_dim} wide"
        raise metadata.wrong(f"{kind}.attention.key_length", wanted)
    if metadata.integer(f"{kind}.rope.dimension_count", head_dim) != head_dim:
        raise metadata.wrong(f"{kind}.rope.dimension_count", f"the head dimension {head_dim}")
    theta, scaling, context = normalise_rope(read_rope(file, kind, head_dim))
    layers = metadata.integer(f"{kind}.block_count", most=MOST_LAYERS)
    moe = _experts(file, metadata, kind, layers)
    return ModelSpec(
        architecture="MixtralForCausalLM" if kind == "llama" and moe else ARCHITECTURES[kind],
        hidden_size=hidden,
        intermediate_size=metadata.integer(f"{kind}.feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(file),
        max_position_embeddings=context,
        rms_norm_eps=shortest(metadata.number(f"{kind}.attention.layer_norm_rms_epsilon")),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        moe=moe,
        bos_token_id=min(metadata.token_ids("tokenizer.ggml.bos_token_id"), default=None),
        eos_token_ids=eos_token_ids(metadata),
    )


def eos_token_ids(metadata: Fields) -> frozenset[int]:
    """Return the ids that end an answer: end of text, of turn, and of message."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    return frozenset().union(*(metadata.token_ids(f"tokenizer.ggml.{key}") for key in keys))


def _architecture(metadata: Fields) -> str:
    kind = metadata.text("general.architecture")
    if kind not in ARCHITECTURES:
        raise metadata.wrong("general.architecture", f"one of {', '.join(ARCHITECTURES)}")
    if metadata.integer("split.count", 1) > 1:
        raise metadata.wrong("split.count", "1; merge the parts with `llama-gguf-split --merge`")
    return kind


def _experts(file: GgufFile, metadata: Fields, kind: str, layers: int) -> MoeSpec | None:
    """Return the experts, their widths read off the tensors: not every file states them in its metadata."""
    expected = kind in ("qwen2moe", "qwen3moe")
    experts = metadata.integer(f"{kind}.expert_count") if expected else metadata.count(f"{kind}.expert_count", 0)
    if not experts:
        return None
    if experts > MOST_EXPERTS:
        raise metadata.wrong(f"{kind}.expert_count", f"at most {MOST_EXPERTS}")
    top_k = metadata.integer(f"{kind}.expert_used_count")
    if top_k > experts:
        raise metadata.wrong(f"{kind}.expert_used_count", f"at most `{kind}.expert_count` ({experts})")
    sparse = [layer for layer in range(layers) if f"blk.{layer}.ffn_gate_exps.weight" in file.tensors]
    if not sparse:
        raise ModelLoadError(f"{file.path}: tensor 'blk.0.ffn_gate_exps.weight' is missing; convert the model again")
    gates = file.tensors[f"blk.{sparse[0]}.ffn_gate_exps.weight"]
    if len(gates.shape) != 3:
        raise ModelLoadError(
            f"{file.path}: tensor 'blk.{sparse[0]}.ffn_gate_exps.weight' has shape {list(gates.shape)}, expected "
            f"{experts} experts of two dimensions each"
        )
    shared = file.tensors.get(f"blk.{sparse[0]}.ffn_gate_shexp.weight")
    return MoeSpec(
        num_experts=experts,
        num_experts_per_tok=top_k,
        moe_intermediate_size=gates.shape[1],
        # What llama.cpp does for these architectures where a file does not say.
        norm_topk_prob=metadata.flag(f"{kind}.expert_weights_norm", kind != "qwen2moe"),
        shared_expert_intermediate_size=shared.shape[0] if shared else None,
        dense_layers=frozenset(range(layers)) - frozenset(sparse),
    )


def _vocab_size(file: GgufFile) -> int:
    """Return the rows of the embedding: the metadata may count tokens without the padding."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{file.path}: tensor 'token_embd.weight' is missing")
    return embedding.shape[0]
