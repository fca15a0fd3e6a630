"""Linear projections. Letters: T tokens, E input width, O output width."""

from collections.abc import Mapping
from itertools import groupby

import torch

from sglk.backends import reference
from sglk.layers.product_weight import ProductWeight
from sglk.layers.quantised_linear import QuantisedProduct, SummedProduct
from sglk.layers.weights import LayerContext, Weight


class Linear:
    """y = x W^T + b, for one projection or for several that share their input and run as one product.

    Neighbouring projections that are quantised in different ways, or in different orders of columns, run apart.
    """

    def __init__(
        self,
        context: LayerContext,
        outputs: Mapping[str, int],
        in_features: int,
        bias: bool = False,
        *,
        summed: bool = False,
    ) -> None:
        """`outputs` maps the name of each projection, such as `model.layers.0.mlp.up_proj`, to its output width.

        `summed` = each rank has some of the inputs, and the results are summed over all of them.
        """
        self.products: list[Product | QuantisedProduct | SummedProduct] = []
        kind = SummedProduct if summed and context.ranks.size > 1 else QuantisedProduct
        for scheme, parts in groupby(outputs.items(), key=lambda part: context.scheme(part[0])):
            if scheme is None:
                self.products.append(Product(context, dict(parts), in_features, bias))
            else:
                self.products.append(kind(context, dict(parts), in_features, bias, scheme))

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return y_TO, the outputs of fused projections side by side."""
        if len(self.products) == 1:
            return self.products[0](x_TE)
        return torch.cat([product(x_TE) for product in self.products], dim=-1)


class Product:
    """One product in full precision."""

    def __init__(self, context: LayerContext, outputs: Mapping[str, int], in_features: int, bias: bool) -> None:
        parts = tuple((f"{name}.weight", (width, in_features)) for name, width in outputs.items())
        self._linear = context.op(reference.linear, in_features=in_features, out_features=sum(outputs.values()))
        self.weight = ProductWeight(context, parts, self._linear)
        self.bias: Weight | None = None
        if bias:
            self.bias = context.weight(*((f"{name}.bias", (width,)) for name, width in outputs.items()))

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return y_TO."""
        return self._linear(x_TE, self.weight.form(self._linear), self.bias.tensor if self.bias else None)
