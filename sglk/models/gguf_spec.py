"""Architecture numbers from the metadata of a GGUF file."""

import math
from typing import Any

import numpy as np

from sglk.errors import ModelLoadError
from sglk.models.fields import MOST_EXPERTS, MOST_HEAD_WIDTH, MOST_LAYERS, Fields
from sglk.models.gguf_file import GgufFile
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

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every published Llama 3.x uses; GGUF files keep only the resulting factors."""


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
    theta, scaling, context = normalise_rope(_rope_config(file, metadata, kind, head_dim))
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
        rms_norm_eps=_shortest(metadata.number(f"{kind}.attention.layer_norm_rms_epsilon")),
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
    width = file.tensors[f"blk.{sparse[0]}.ffn_gate_exps.weight"].shape[1]
    shared = file.tensors.get(f"blk.{sparse[0]}.ffn_gate_shexp.weight")
    return MoeSpec(
        num_experts=experts,
        num_experts_per_tok=top_k,
        moe_intermediate_size=width,
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


def _rope_config(file: GgufFile, metadata: Fields, kind: str, head_dim: int) -> Fields:
    """Return the rotary settings under the names of config.json."""
    theta = metadata.number(f"{kind}.rope.freq_base", 10000.0)
    config: dict[str, Any] = {
        "rope_theta": theta,
        "max_position_embeddings": metadata.integer(f"{kind}.context_length"),
    }
    scaling_kind = metadata.text(f"{kind}.rope.scaling.type", "none")
    if scaling_kind != "none":
        config["rope_scaling"] = {
            "rope_type": scaling_kind,
            "factor": metadata.values.get(f"{kind}.rope.scaling.factor"),
            "original_max_position_embeddings": metadata.values.get(f"{kind}.rope.scaling.original_context_length"),
        }
    elif "rope_freqs.weight" in file.tensors:
        config["rope_scaling"] = _llama3_scaling(file, theta, head_dim)
    return Fields(config, str(file.path))


def _llama3_scaling(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Return the Llama 3 scaling whose factors the file carries in `rope_freqs.weight`; any other set is refused."""
    stored = file.raw("rope_freqs.weight").view(np.float32).ravel()
    scaling = {"rope_type": "llama3", "factor": _shortest(float(stored.max())), **_LLAMA3}
    expected = llama3_divisors(scaling, theta, head_dim)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-3):
        raise ModelLoadError(
            f"{file.path}: tensor 'rope_freqs.weight' is not a Llama 3 scaling; no other kind is known"
        )
    return scaling


def llama3_divisors(scaling: dict[str, Any], theta: float, head_dim: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return what Llama 3 scaling divides each of the head_dim/2 rotary frequencies by.

    Source: apply_scaling in meta-llama/llama-models, models/llama3/model.py.
    """
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _shortest(value: float) -> float:
    """Return the shortest decimal of a float32, so that a stored 1e-5 reads 1e-05 and not 9.999999747e-06."""
    return float(str(np.float32(value)))
