"""Tiny models on disk: a few hundred kilobytes with random weights, for tests that need real files.

Token ids 0..255 are bytes, from 256 on come the special tokens, the rest of the vocabulary is padding without text.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from sglk.models import byte_level
from sglk.models.byte_level import BOS, BOS_ID, EOS, EOS_ID
from sglk.testing.tiny_weights import Weights, tiny_weights

CHATML = byte_level.CHATML
"""A chat template whose special tokens are in the tiny vocabulary."""

_OWN_KEYS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "MistralForCausalLM": {"model_type": "mistral"},
    "MixtralForCausalLM": {"model_type": "mixtral", "num_local_experts": 6, "num_experts_per_tok": 2},
    "Qwen2ForCausalLM": {"model_type": "qwen2"},
    "Qwen2MoeForCausalLM": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "norm_topk_prob": False,
    },
    "Qwen3ForCausalLM": {"model_type": "qwen3", "head_dim": 32},
    "Qwen3MoeForCausalLM": {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}
"""Keys of config.json that only some architectures have."""


def tiny_config(architecture: str = "LlamaForCausalLM", **overrides: Any) -> dict[str, Any]:
    """Return the contents of a tiny model's config.json; `overrides` replace or add keys."""
    config: dict[str, Any] = {
        "architectures": [architecture],
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
    return config | _OWN_KEYS.get(architecture, {"model_type": "llama"}) | overrides


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
