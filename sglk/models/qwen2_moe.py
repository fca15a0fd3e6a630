"""Qwen1.5 and Qwen2 with experts."""

from sglk.layers.mlp import GatedMLP
from sglk.layers.moe import SharedExpertMLP, SparseMLP
from sglk.layers.weights import LayerContext
from sglk.models.experts import ExpertNames, build_experts
from sglk.models.llama import LlamaForCausalLM, LlamaLayer
from sglk.models.spec import ModelSpec


class Qwen2MoeLayer(LlamaLayer):
    """A layer of experts that tokens choose beside one that all visit, or of one plain block."""

    def build_mlp(self, context: LayerContext, spec: ModelSpec, name: str) -> GatedMLP | SparseMLP | SharedExpertMLP:
        """Return the feed-forward block."""
        assert spec.moe is not None
        if self.layer_id in spec.moe.dense_layers:
            return super().build_mlp(context, spec, name)
        shared_width = spec.moe.shared_expert_intermediate_size
        assert shared_width is not None
        chosen = build_experts(context, spec, name, ExpertNames())
        return SharedExpertMLP(context, f"{name}.mlp", spec.hidden_size, shared_width, chosen)


class Qwen2MoeForCausalLM(LlamaForCausalLM):
    """Qwen2 with experts in place of most feed-forward blocks (Yang et al. 2024, arXiv:2407.10671, section 2.2.2)."""

    layer = Qwen2MoeLayer
