"""Token embedding and output head. Letters: T tokens, B rows, V vocabulary, E width."""

import torch

from sglk.backends import reference
from sglk.layers.weights import LayerContext, Weight


class Embedding:
    """Looks the vectors of tokens up."""

    def __init__(self, context: LayerContext, name: str, vocab_size: int, size: int) -> None:
        self.weight = context.weight((f"{name}.weight", (vocab_size, size)))
        self._embedding = context.op(reference.embedding, size=size)

    def __call__(self, ids_T: torch.Tensor) -> torch.Tensor:
        """Return x_TE."""
        return self._embedding(ids_T, self.weight.tensor)


class OutputHead:
    """Turns hidden states into logits, with weights of its own or those of the embedding."""

    def __init__(self, context: LayerContext, name: str, vocab_size: int, size: int, tied: Weight | None) -> None:
        self.weight = tied or context.weight((f"{name}.weight", (vocab_size, size)))
        self._linear = context.op(reference.linear, in_features=size, out_features=vocab_size)

    def __call__(self, x_BE: torch.Tensor) -> torch.Tensor:
        """Return logits_BV."""
        return self._linear(x_BE, self.weight.tensor, None)
