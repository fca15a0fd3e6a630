"""Experts in int8 that are split over ranks, which round a token's activations alike.

Letters: T tokens, E hidden width, F width of an expert on one rank, X experts, C chosen, R = T * C visits.
"""

from collections.abc import Sequence

import torch

from sglk.backends import reference
from sglk.backends.moe_ops import visits_by_expert
from sglk.backends.schemes import LinearScheme
from sglk.layers.agreement import Agreement
from sglk.layers.expert_shape import ExpertShape
from sglk.layers.quantised_linear import QuantisedProduct
from sglk.layers.weights import LayerContext, Part


class AgreedExperts:
    """Each expert as two products, between which the ranks agree on the scales of all visits.

    An op for all experts at once would round what no other rank has seen.
    """

    def __init__(
        self,
        context: LayerContext,
        shape: ExpertShape,
        gate_up: Sequence[Part],
        down: Sequence[Part],
        schemes: tuple[LinearScheme, LinearScheme],
    ) -> None:
        """As `QuantisedExperts`."""
        self._width = shape.width
        self._agree = Agreement(context, lines=shape.top_k)
        self._activate = context.op(reference.silu_and_mul, size=shape.width)
        names = [part[0].removesuffix(".weight") for part in gate_up]
        self._gate_up = [
            QuantisedProduct(context, dict.fromkeys(pair, shape.width), shape.hidden, False, schemes[0])
            for pair in zip(names[::2], names[1::2], strict=True)
        ]
        self._down = [
            QuantisedProduct(
                context, {name.removesuffix(".weight"): shape.hidden}, shape.width, False, schemes[1], spare=True
            )
            for name, _ in down
        ]

    def __call__(self, x_TE: torch.Tensor, weights_TC: torch.Tensor, ids_TC: torch.Tensor) -> torch.Tensor:
        """Return y_TE, the weighted sum of the chosen experts, kept in fp32 up to its end."""
        visits = visits_by_expert(ids_TC, len(self._down))
        hidden_RF = x_TE.new_empty(ids_TC.numel(), self._width)
        for product, visits_R in zip(self._gate_up, visits, strict=True):
            if len(visits_R):
                hidden_RF[visits_R] = self._activate(product(x_TE[visits_R // ids_TC.shape[1]]))
        hidden_RF = self._agree(hidden_RF)
        out_TE = torch.zeros_like(x_TE, dtype=torch.float32)
        for product, visits_R in zip(self._down, visits, strict=True):
            if len(visits_R):
                y_RE = product(hidden_RF[visits_R]).float() * weights_TC.flatten()[visits_R].unsqueeze(1)
                out_TE.index_add_(0, visits_R // ids_TC.shape[1], y_RE)
        return out_TE.to(x_TE.dtype)
