"""Gated feed-forward block. Letters: T tokens, E hidden width."""

import torch

from sglk.backends import reference
from sglk.layers.linear import Linear, OutputLinear
from sglk.layers.weights import LayerContext


class GatedMLP:
    """down(silu(gate(x)) * up(x)) (SwiGLU; Shazeer 2020, arXiv:2002.05202)."""

    def __init__(
        self, context: LayerContext, name: str, hidden_size: int, intermediate_size: int, bias: bool = False
    ) -> None:
        gate_up = {f"{name}.gate_proj": intermediate_size, f"{name}.up_proj": intermediate_size}
        self.gate_up = Linear(context, gate_up, hidden_size, bias)
        self.down = OutputLinear(context, f"{name}.down_proj", hidden_size, intermediate_size, bias)
        self._activate = context.op(reference.silu_and_mul, size=intermediate_size)

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the block's contribution y_TE."""
        return self.down(self._activate(self.gate_up(x_TE)))
