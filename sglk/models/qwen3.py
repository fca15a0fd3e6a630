"""Qwen3, dense."""

from sglk.layers.attention import SelfAttention
from sglk.layers.weights import LayerContext
from sglk.models.llama import LlamaForCausalLM, LlamaLayer
from sglk.models.spec import ModelSpec


class Qwen3Layer(LlamaLayer):
    """A layer that normalises every head's query and key."""

    def build_attention(
        self, context: LayerContext, spec: ModelSpec, name: str, head_norm_eps: float | None = None
    ) -> SelfAttention:
        """Return the attention block with its two more norms."""
        return super().build_attention(context, spec, name, spec.rms_norm_eps)


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Llama with normalised query and key heads (Qwen Team 2025, arXiv:2505.09388)."""

    layer = Qwen3Layer
