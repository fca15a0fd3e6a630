"""Qwen2 and Qwen2.5, dense."""

from sglk.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Llama with biases on q, k and v: `spec.attention_bias` (Yang et al. 2024, arXiv:2407.10671)."""
