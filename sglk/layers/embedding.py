"""Token embedding and output head. Letters: T tokens, B rows, V vocabulary, E width."""

import torch

from sglk.backends import reference
from sglk.layers.linear import Product
from sglk.layers.product_weight import ProductWeight
from sglk.layers.quantised_linear import QuantisedProduct
from sglk.layers.weights import LayerContext


class Embedding:
    """Looks the vectors of tokens up."""

    def __init__(self, context: LayerContext, name: str, vocab_size: int, size: int) -> None:
        self._embedding = context.op(reference.embedding, size=size)
        self.weight = ProductWeight(context, ((f"{name}.weight", (vocab_size, size)),), self._embedding)

    def __call__(self, ids_T: torch.Tensor) -> torch.Tensor:
        """Return x_TE."""
        return self._embedding(ids_T, self.weight.form(self._embedding))


class OutputHead:
    """Turns hidden states into logits, with weights of its own or those of the embedding."""

    def __init__(
        self, context: LayerContext, name: str, vocab_size: int, size: int, tied: ProductWeight | None
    ) -> None:
        self._product: Product | QuantisedProduct
        scheme = context.quantization.head
        if scheme is None:
            self._product = Product(context, {name: vocab_size}, size, False, tied)
        else:
            # Rows are looked up as they are stored, so what is multiplied by is a matrix of its own.
            stored = name if tied is None else tied.parts[0][0].removesuffix(".weight")
            self._product = QuantisedProduct(context, {stored: vocab_size}, size, False, scheme)

    def __call__(self, x_BE: torch.Tensor) -> torch.Tensor:
        """Return logits_BV."""
        return self._product(x_BE)
