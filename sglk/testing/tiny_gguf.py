"""The tiny models of `sglk.testing.tiny` as GGUF files, written by the `gguf` library."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

from sglk.models.byte_level import BOS_ID, EOS_ID, SPECIAL_TOKENS, byte_characters
from sglk.testing.tiny import tiny_config
from sglk.testing.tiny_weights import Weight, Weights, tiny_weights

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "block_sparse_moe.gate.": "ffn_gate_inp.",
    "mlp.gate.": "ffn_gate_inp.",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_EXPERT = re.compile(r"model\.layers\.(\d+)\.\w+\.experts\.\d+\.(\w+)\.weight")
_PROJECTIONS = {
    "gate_proj": "gate",
    "w1": "gate",
    "up_proj": "up",
    "w3": "up",
    "down_proj": "down",
    "w2": "down",
}


def write_tiny_gguf(
    file: Path | str,
    *,
    architecture: str = "LlamaForCausalLM",
    seed: int = 0,
    quantization: str = "F32",
    chat_template: str | None = None,
    **overrides: Any,
) -> Path:
    """Write the weights of `write_tiny_model` with the same arguments as a GGUF file and return its path.

    `quantization` is a GGML type name that the `gguf` library can write (F32, F16, BF16, Q8_0, Q4_0, Q4_1, ...); as
    llama.cpp does, vectors stay in F32.
    """
    file = Path(file)
    config = tiny_config(architecture, **overrides)
    writer = gguf.GGUFWriter(file, _ARCHITECTURES[architecture])
    _write_architecture(writer, config)
    _write_tokenizer(writer, chat_template)
    for name, weight in _stacked(tiny_weights(config, seed)).items():
        type_ = gguf.GGMLQuantizationType[quantization if weight.ndim > 1 else "F32"]
        stored = quantize(_stored_order(name, weight, config), type_)
        writer.add_tensor(stored_name(name), stored, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _stacked(weights: Weights) -> Weights:
    """Stack the matrices of all experts of a layer, as llama.cpp's converter does; a shared expert's gate is flat."""
    stacks: dict[str, list[Weight]] = {}
    for name, weight in weights.items():
        expert = _EXPERT.fullmatch(name)
        key = name if expert is None else f"blk.{expert[1]}.ffn_{_PROJECTIONS[expert[2]]}_exps.weight"
        stacks.setdefault(key, []).append(weight)
    return {
        name: np.stack(parts) if "_exps" in name else parts[0].ravel() if "shared_expert_gate" in name else parts[0]
        for name, parts in stacks.items()
    }


def stored_name(name: str) -> str:
    """Return llama.cpp's name of a weight."""
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _write_architecture(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if experts := config.get("num_experts", config.get("num_local_experts")):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])


def _write_tokenizer(writer: gguf.GGUFWriter, chat_template: str | None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*byte_characters(), *SPECIAL_TOKENS])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS))
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


def _stored_order(name: str, weight: Weight, config: dict[str, Any]) -> Weight:
    """Interleave the two halves of each head of q and k, as llama.cpp's converter does for the llama family only."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
    if heads is None or _ARCHITECTURES[config["architectures"][0]] != "llama":
        return weight
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
