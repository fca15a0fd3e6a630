"""Token embedding and output head. Letters: T tokens, B rows, V vocabulary, E width."""

import torch

from sglk.backends import reference
from sglk.layers.product_weight import ProductWeight
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
        self._linear = context.op(reference.linear, in_features=size, out_features=vocab_size)
        self.weight = tied or ProductWeight(context, ((f"{name}.weight", (vocab_size, size)),))
        self.weight.serve(self._linear)

    def __call__(self, x_BE: torch.Tensor) -> torch.Tensor:
        """Return logits_BV."""
        return self._linear(x_BE, self.weight.form(self._linear), None)
