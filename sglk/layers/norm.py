"""Root mean square normalisation. Letters: T tokens, E width."""

import torch

from sglk.backends import reference
from sglk.layers.weights import LayerContext


class RMSNorm:
    """Scales each vector to unit root mean square, then by a learned weight."""

    def __init__(self, context: LayerContext, name: str, size: int, eps: float) -> None:
        self.weight = context.weight((f"{name}.weight", (size,)))
        self.eps = eps
        self._norm = context.op(reference.rms_norm, size=size)

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return the norm of each vector along the last axis."""
        return self._norm(x_TE, self.weight.tensor, self.eps)


class ResidualNorm(RMSNorm):
    """A norm on the way between blocks: it also adds the contribution of the block before to the residual."""

    def __init__(self, context: LayerContext, name: str, size: int, eps: float) -> None:
        super().__init__(context, name, size, eps)
        self._add_norm = context.op(reference.add_rms_norm, size=size)

    def add(self, x_TE: torch.Tensor, residual_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of x + residual, and the sum, which is the next residual; both arguments are used up."""
        return self._add_norm(x_TE, residual_TE, self.weight.tensor, self.eps)
