"""The weights of a layer's experts, and their products.

Letters: T tokens, E hidden width, F width of an expert, X experts, C chosen.
"""

import logging
from collections.abc import Sequence

import torch

from sglk.backends import moe_ops
from sglk.backends.quantised_moe import run_quantised_experts
from sglk.backends.schemes import LinearScheme
from sglk.layers.expert_shape import ExpertShape
from sglk.layers.gathered_experts import GatheredExperts
from sglk.layers.product_weight import ProductWeight
from sglk.layers.quantised_linear import QuantisedWeight
from sglk.layers.weights import LayerContext, Part

logger = logging.getLogger(__name__)


class Experts:
    """Experts in full precision."""

    def __init__(
        self, context: LayerContext, shape: ExpertShape, gate_up: Sequence[Part], down: Sequence[Part]
    ) -> None:
        """`gate_up` names the gate and the up projection of every expert in turn, `down` the one behind them."""
        self._run = context.op(
            moe_ops.run_experts, experts=shape.experts, top_k=shape.top_k, hidden=shape.hidden, width=shape.width
        )
        self.gate_up = ProductWeight(context, tuple(gate_up), self._run, matrices=shape.experts)
        self.down = ProductWeight(context, tuple(down), self._run, matrices=shape.experts)

    def __call__(self, x_TE: torch.Tensor, weights_TC: torch.Tensor, ids_TC: torch.Tensor) -> torch.Tensor:
        """Return y_TE, the weighted sum of the chosen experts."""
        return self._run(x_TE, self.gate_up.form(self._run), self.down.form(self._run), weights_TC, ids_TC)


class QuantisedExperts:
    """Experts that are quantised, all in the same way."""

    def __init__(
        self,
        context: LayerContext,
        shape: ExpertShape,
        gate_up: Sequence[Part],
        down: Sequence[Part],
        schemes: tuple[LinearScheme, LinearScheme],
    ) -> None:
        """`schemes` are those of `gate_up` and `down`, which differ at most in the order of their columns."""
        first = schemes[0]
        one_group = all(first.width(inputs) == inputs for inputs in (shape.hidden, shape.width))
        self._run = context.op(
            run_quantised_experts,
            experts=shape.experts,
            top_k=shape.top_k,
            hidden=shape.hidden,
            width=shape.width,
            scheme=first.kind,
            group_size=-1 if one_group else first.group_size,
            symmetric=first.symmetric,
        )
        self._experts, self._scheme = shape.experts, first.kind
        self.gate_up = QuantisedWeight(tuple(gate_up), schemes[0], self._run, matrices=shape.experts)
        self.down = QuantisedWeight(tuple(down), schemes[1], self._run, matrices=shape.experts)
        context.weights.extend((self.gate_up, self.down))

    def __call__(self, x_TE: torch.Tensor, weights_TC: torch.Tensor, ids_TC: torch.Tensor) -> torch.Tensor:
        """Return y_TE, the weighted sum of the chosen experts."""
        gate_up, down = self.gate_up.packed, self.down.packed
        return self._run(x_TE, gate_up, down, weights_TC, ids_TC, self._experts, self._scheme)


def choose_experts(
    context: LayerContext, shape: ExpertShape, gate_up: Sequence[Part], down: Sequence[Part]
) -> Experts | QuantisedExperts | GatheredExperts:
    """Return experts as the model's quantisation has them."""
    first, second = _common_scheme(context, gate_up), _common_scheme(context, down)
    if first is None or second is None:
        if any(context.scheme(_layer(part)) for part in (*gate_up, *down)):
            logger.warning(
                "the experts of %s take the memory of full precision: they are quantised in several ways or orders of "
                "columns; a checkpoint without act-order takes less",
                _layer(down[0]).partition(".experts.")[0],
            )
        if context.gathers:
            return GatheredExperts(context, shape, gate_up, down, (None, None))
        return Experts(context, shape, gate_up, down)
    kind = GatheredExperts if context.gathers else QuantisedExperts
    return kind(context, shape, gate_up, down, (first, second))


def _common_scheme(context: LayerContext, parts: Sequence[Part]) -> LinearScheme | None:
    schemes = {context.scheme(_layer(part)) for part in parts}
    return schemes.pop() if len(schemes) == 1 else None


def _layer(part: Part) -> str:
    return part[0].removesuffix(".weight")
