"""Tiny models on disk: a few hundred kilobytes with random weights, for tests that need real files.

Token ids 0..255 are bytes, from 256 on come the special tokens, the rest of the vocabulary is padding without text.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from sglk.models import byte_level
from sglk.models.byte_level import BOS, BOS_ID, EOS, EOS_ID

CHATML = byte_level.CHATML
"""A chat template whose special tokens are in the tiny vocabulary."""

Weight = npt.NDArray[np.float32]
Weights = dict[str, Weight]

_MODEL_TYPES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2"}


def tiny_config(architecture: str = "LlamaForCausalLM", **overrides: Any) -> dict[str, Any]:
    """Return the contents of a tiny model's config.json; `overrides` replace or add keys."""
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": _MODEL_TYPES.get(architecture, "llama"),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 320,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
    return config | overrides


def tiny_weights(config: dict[str, Any], seed: int = 0) -> Weights:
    """Return random fp32 weights under their Hugging Face names, the same for the same configuration and seed.

    Matrices have standard deviation 1/sqrt(fan-in), so that attention and logits are far from uniform.
    """
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads

    def matrix(rows: int, columns: int) -> Weight:
        return np.asarray(rng.standard_normal((rows, columns)) / columns**0.5, np.float32)

    def vector(size: int, centre: float) -> Weight:
        return np.asarray(centre + 0.1 * rng.standard_normal(size), np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocab, hidden) * np.float32(hidden**0.5)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        weights |= {
            f"{layer}.input_layernorm.weight": vector(hidden, 1.0),
            f"{layer}.self_attn.q_proj.weight": matrix(heads * head_dim, hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(kv_heads * head_dim, hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(kv_heads * head_dim, hidden),
            f"{layer}.self_attn.o_proj.weight": matrix(hidden, heads * head_dim),
            f"{layer}.post_attention_layernorm.weight": vector(hidden, 1.0),
            f"{layer}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{layer}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{layer}.mlp.down_proj.weight": matrix(hidden, inner),
        }
        if config["model_type"] == "qwen2" or config.get("attention_bias"):
            weights |= {
                f"{layer}.self_attn.q_proj.bias": vector(heads * head_dim, 0.0),
                f"{layer}.self_attn.k_proj.bias": vector(kv_heads * head_dim, 0.0),
                f"{layer}.self_attn.v_proj.bias": vector(kv_heads * head_dim, 0.0),
            }
    weights["model.norm.weight"] = vector(hidden, 1.0)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(vocab, hidden)
    return weights


def write_tiny_model(
    folder: Path | str,
    *,
    architecture: str = "LlamaForCausalLM",
    seed: int = 0,
    shards: int = 1,
    chat_template: str | None = None,
    **overrides: Any,
) -> Path:
    """Write a loadable model folder in Hugging Face's layout and return it.

    `shards` above 1 splits the weights over that many files with an index; `chat_template` goes into
    tokenizer_config.json; `overrides` replace or add keys of config.json, such as `num_key_value_heads=1`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(architecture, **overrides)
    write_json(folder / "config.json", config)
    write_shards(folder, tiny_weights(config, seed), shards)
    write_tokenizer(folder, chat_template)
    return folder


def write_shards(folder: Path, weights: Weights, shards: int) -> None:
    """Write `weights` as one safetensors file, or as `shards` files and their index."""
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    weight_map: dict[str, str] = {}
    for index in range(shards):
        part = names[index * len(names) // shards : (index + 1) * len(names) // shards]
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(weight.nbytes for weight in weights.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_tokenizer(folder: Path, chat_template: str | None = None) -> None:
    """Write the byte-level tokenizer.json and its tokenizer_config.json."""
    byte_level.byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": 256,
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    write_json(folder / "tokenizer_config.json", settings)


def write_json(file: Path, value: Any) -> None:
    """Write `value` as indented JSON."""
    file.write_text(json.dumps(value, indent=2), encoding="utf-8")
