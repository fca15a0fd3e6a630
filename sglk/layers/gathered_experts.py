"""Experts that are split over ranks which bring together what their first products come to.

Letters: T tokens, E hidden width, S of it on one rank, F an expert's width on one rank, C chosen, R = T * C visits.
"""

from collections.abc import Sequence

import torch

from sglk.backends import reference
from sglk.backends.moe_ops import visits_by_expert
from sglk.backends.schemes import LinearScheme
from sglk.layers.expert_shape import ExpertShape
from sglk.layers.linear import product_of
from sglk.layers.weights import LayerContext, Part


class GatheredExperts:
    """Each expert as two products, as `OutputLinear` splits them: the second computes some outputs of all visits.

    An op for all experts at once would go from tokens to outputs without a place for the ranks to meet.
    """

    def __init__(
        self,
        context: LayerContext,
        shape: ExpertShape,
        gate_up: Sequence[Part],
        down: Sequence[Part],
        schemes: tuple[LinearScheme, LinearScheme] | tuple[None, None],
    ) -> None:
        """As `QuantisedExperts`; without schemes the experts are in full precision."""
        self._width, self._outputs = shape.width, context.share(shape.hidden)
        self._activate = context.op(reference.silu_and_mul, size=shape.width)
        names = [part[0].removesuffix(".weight") for part in gate_up]
        self._gate_up = [
            product_of(context, dict.fromkeys(pair, shape.width), shape.hidden, schemes[0])
            for pair in zip(names[::2], names[1::2], strict=True)
        ]
        self._gather = context.gather(shape.width * context.ranks.size, lines=shape.top_k)
        self._down = [
            product_of(context, {name.removesuffix(".weight"): self._outputs}, self._gather.width, schemes[1])
            for name, _ in down
        ]

    def __call__(self, x_TE: torch.Tensor, weights_TC: torch.Tensor, ids_TC: torch.Tensor) -> torch.Tensor:
        """Return y_TS, the weighted sum of the chosen experts from the first to the last, in fp32 up to its end."""
        visits = _visits(ids_TC, len(self._down))
        hidden_RF = x_TE.new_empty(ids_TC.numel(), self._width)
        for product, visits_R in zip(self._gate_up, visits, strict=True):
            if len(visits_R):
                hidden_RF[visits_R] = self._activate(product(x_TE[visits_R // ids_TC.shape[1]]))
        hidden_RF = self._gather(hidden_RF)
        y_RS = x_TE.new_empty(ids_TC.numel(), self._outputs)
        for product, visits_R in zip(self._down, visits, strict=True):
            if len(visits_R):
                y_RS[visits_R] = product(hidden_RF[visits_R])
        weighted_TCS = y_RS.float().view(*ids_TC.shape, -1) * weights_TC.unsqueeze(2)
        out_TS = weighted_TCS[:, 0]
        for choice in range(1, ids_TC.shape[1]):
            out_TS = out_TS + weighted_TCS[:, choice]
        return out_TS.to(x_TE.dtype)


def _visits(ids_TC: torch.Tensor, experts: int) -> Sequence[torch.Tensor]:
    """Return the visits of each expert; where a step is only traced, ids have no values, and all get alike many."""
    if ids_TC.is_meta:
        return torch.arange(ids_TC.numel(), device=ids_TC.device).tensor_split(experts)
    return visits_by_expert(ids_TC, experts)
