"""Linear projections. Letters: T tokens, E input width, O output width."""

from collections.abc import Mapping
from itertools import groupby

import torch

from sglk.backends import reference
from sglk.backends.schemes import LinearScheme
from sglk.layers.product_weight import ProductWeight
from sglk.layers.quantised_linear import QuantisedProduct
from sglk.layers.weights import LayerContext, Weight


class Linear:
    """y = x W^T + b, for one projection or for several that share their input and run as one product.

    Neighbouring projections that are quantised in different ways, or in different orders of columns, run apart.
    """

    def __init__(self, context: LayerContext, outputs: Mapping[str, int], in_features: int, bias: bool = False) -> None:
        """`outputs` maps the name of each projection, such as `model.layers.0.mlp.up_proj`, to its output width."""
        self.products = [
            product_of(context, dict(parts), in_features, scheme, bias)
            for scheme, parts in groupby(outputs.items(), key=lambda part: context.scheme(part[0]))
        ]

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return y_TO, the outputs of fused projections side by side."""
        if len(self.products) == 1:
            return self.products[0](x_TE)
        return torch.cat([product(x_TE) for product in self.products], dim=-1)


class OutputLinear(Linear):
    """A projection out of a block, of whose inputs each rank has some; `LayerContext.join` is at the block's end.

    Where the ranks gather, every rank gets all inputs and computes some outputs. Each output is then one sum, in the
    same order on any number of ranks.
    """

    def __init__(self, context: LayerContext, name: str, width: int, in_features: int, bias: bool) -> None:
        """`width` is that of the whole output, `in_features` the inputs that one rank has."""
        self._gather = context.gather(in_features * context.ranks.size) if context.gathers else None
        inputs = in_features if self._gather is None else self._gather.width
        super().__init__(context, {name: context.share(width)}, inputs, bias)

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return this rank's outputs, or its part of their sums."""
        return super().__call__(x_TE if self._gather is None else self._gather(x_TE))


class Product:
    """One product in full precision."""

    def __init__(
        self,
        context: LayerContext,
        outputs: Mapping[str, int],
        in_features: int,
        bias: bool,
        weight: ProductWeight | None = None,
    ) -> None:
        """`weight` = the matrix of another layer, which this one has too."""
        parts = tuple((f"{name}.weight", (width, in_features)) for name, width in outputs.items())
        self._linear = context.op(reference.linear, in_features=in_features, out_features=sum(outputs.values()))
        self.weight = weight or ProductWeight(context, parts)
        self.weight.serve(self._linear)
        self.bias: Weight | None = None
        if bias:
            self.bias = context.weight(*((f"{name}.bias", (width,)) for name, width in outputs.items()))

    def __call__(self, x_TE: torch.Tensor) -> torch.Tensor:
        """Return y_TO."""
        return self._linear(x_TE, self.weight.form(self._linear), self.bias.tensor if self.bias else None)


def product_of(
    context: LayerContext,
    outputs: Mapping[str, int],
    in_features: int,
    scheme: LinearScheme | None,
    bias: bool = False,
) -> Product | QuantisedProduct:
    """Return the product of projections that share their input and are all quantised by `scheme`."""
    if scheme is None:
        return Product(context, outputs, in_features, bias)
    return QuantisedProduct(context, outputs, in_features, bias, scheme)
