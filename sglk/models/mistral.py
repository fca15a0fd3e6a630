"""Mistral, dense."""

from sglk.models.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """Llama whose attention may slide: `spec.sliding_windows` (Jiang et al. 2023, arXiv:2310.06825)."""
