"""Mixtral: Mistral with experts."""

from sglk.layers.moe import SparseMLP
from sglk.layers.weights import LayerContext
from sglk.models.experts import ExpertNames, build_experts
from sglk.models.llama import LlamaForCausalLM, LlamaLayer
from sglk.models.spec import ModelSpec

NAMES = ExpertNames("block_sparse_moe", "w1", "w3", "w2")


class MixtralLayer(LlamaLayer):
    """A layer of experts; every layer has them."""

    def build_mlp(self, context: LayerContext, spec: ModelSpec, name: str) -> SparseMLP:
        """Return the experts."""
        return build_experts(context, spec, name, NAMES)


class MixtralForCausalLM(LlamaForCausalLM):
    """Mistral with experts in place of feed-forward blocks (Jiang et al. 2024, arXiv:2401.04088)."""

    layer = MixtralLayer
    expert_names = NAMES
