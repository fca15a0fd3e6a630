"""Qwen3 with experts."""

from sglk.layers.mlp import GatedMLP
from sglk.layers.moe import SharedExpertMLP, SparseMLP
from sglk.layers.weights import LayerContext
from sglk.models.experts import ExpertNames, build_experts
from sglk.models.llama import LlamaForCausalLM
from sglk.models.qwen3 import Qwen3Layer
from sglk.models.spec import ModelSpec


class Qwen3MoeLayer(Qwen3Layer):
    """A Qwen3 layer of experts, or of one plain block."""

    def build_mlp(self, context: LayerContext, spec: ModelSpec, name: str) -> GatedMLP | SparseMLP | SharedExpertMLP:
        """Return the feed-forward block."""
        assert spec.moe is not None
        if self.layer_id in spec.moe.dense_layers:
            return super().build_mlp(context, spec, name)
        return build_experts(context, spec, name, ExpertNames())


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    """Qwen3 with experts in place of most feed-forward blocks (Qwen Team 2025, arXiv:2505.09388)."""

    layer = Qwen3MoeLayer
