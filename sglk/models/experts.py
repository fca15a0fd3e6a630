"""Experts of a model's layers, and what the tensors of their weights are called in a checkpoint."""

from dataclasses import dataclass

from sglk.layers.moe import SparseMLP
from sglk.layers.weights import LayerContext
from sglk.models.spec import ModelSpec


@dataclass(frozen=True)
class ExpertNames:
    """How a family calls its experts: `{layer}.{block}.experts.{expert}.{projection}.weight`."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


def build_experts(context: LayerContext, spec: ModelSpec, layer: str, names: ExpertNames) -> SparseMLP:
    """Return the experts of the layer called `layer`, such as `model.layers.0`."""
    moe = spec.moe
    assert moe is not None, f"{spec.architecture} without experts"
    return SparseMLP(
        context,
        f"{layer}.{names.block}",
        spec.hidden_size,
        width=moe.moe_intermediate_size,
        experts=moe.num_experts,
        top_k=moe.num_experts_per_tok,
        renormalise=moe.norm_topk_prob,
        projections=(names.gate, names.up, names.down),
    )
