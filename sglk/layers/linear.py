"""Linear projections. Letters: T tokens, E input width, O output width."""

from collections.abc import Mapping

import torch

from sglk.backends import reference
from sglk.layers.weights import LayerContext, Weight


class Linear:
    """y = x W^T + b, for one projection or for several that share their input and run as one product."""

    def __init__(self, context: LayerContext, outputs: Mapping[str, int], in_features: int, bias: bool = False) -> None:
        """`outputs` maps the name of each projection, such as `model.layers.0.mlp.up_proj`, to its output width."""
        parts = ((f"{name}.weight", (width, in_features)) for name, width in outputs.items())
        self.weight = context.weight(*parts)
        self.bias: Weight | None = None
        if bias:
            self.bias = context.weight(*((f"{name}.bias", (width,)) for name, width in outputs.items()))
        self._linear = context.op(reference.linear, in_features=in_features, out_features=sum(outputs.values()))

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return y_TO, the outputs of fused projections side by side."""
        return self._linear(x_TE, self.weight.tensor, self.bias.tensor if self.bias else None)
