"""Feed-forward blocks made of experts. Letters: T tokens, E hidden width, F width of an expert, X experts, C chosen."""

import torch

from sglk.backends import moe_ops, reference
from sglk.layers.expert_shape import ExpertShape
from sglk.layers.experts import choose_experts
from sglk.layers.mlp import GatedMLP
from sglk.layers.product_weight import ProductWeight
from sglk.layers.weights import LayerContext

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""Usual names of an expert's three weights."""


class SparseMLP:
    """A router and experts: each token visits its `top_k` likeliest ones (Shazeer et al. 2017, arXiv:1701.06538)."""

    def __init__(
        self,
        context: LayerContext,
        name: str,
        hidden_size: int,
        *,
        width: int,
        experts: int,
        top_k: int,
        renormalise: bool,
        projections: tuple[str, str, str] = PROJECTIONS,
    ) -> None:
        self.top_k, self.renormalise = top_k, renormalise
        gate, up, down = projections
        each = [f"{name}.experts.{expert}" for expert in range(experts)]
        gate_up = [(f"{one}.{part}.weight", (width, hidden_size)) for one in each for part in (gate, up)]
        downs = [(f"{one}.{down}.weight", (hidden_size, width)) for one in each]
        self.experts = choose_experts(context, ExpertShape(experts, top_k, hidden_size, width), gate_up, downs)
        self._linear = context.op(reference.linear, in_features=hidden_size, out_features=experts)
        self.router = ProductWeight(context, ((f"{name}.gate.weight", (experts, hidden_size)),), self._linear)
        self._route = context.op(moe_ops.route, experts=experts, top_k=top_k, renormalise=renormalise)

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the block's contribution y_TE."""
        logits_TX = self._linear(x_TE, self.router.form(self._linear), None)
        weights_TC, ids_TC = self._route(logits_TX, self.top_k, self.renormalise)
        return self.experts(x_TE, weights_TC, ids_TC)


class SharedExpertMLP:
    """Experts that tokens choose, and one that all visit, as much as a gate says (Qwen2-MoE, arXiv:2407.10671)."""

    def __init__(self, context: LayerContext, name: str, hidden_size: int, width: int, chosen: SparseMLP) -> None:
        self.chosen = chosen
        self.shared = GatedMLP(context, f"{name}.shared_expert", hidden_size, width)
        self._linear = context.op(reference.linear, in_features=hidden_size, out_features=1)
        gate = (f"{name}.shared_expert_gate.weight", (1, hidden_size))
        self.gate = ProductWeight(context, (gate,), self._linear)
        self._add_gated = context.op(moe_ops.add_gated, size=context.share(hidden_size))

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the block's contribution y_TE."""
        gate_T1 = self._linear(x_TE, self.gate.form(self._linear), None)
        return self._add_gated(self.chosen(x_TE), gate_T1, self.shared(x_TE))
