"""Experts with own kernels. Letters: T tokens, E hidden width, C experts chosen for a token, R = T * C visits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from sglk.backends.cpu_kernels.elementwise import ElementwiseKernels
from sglk.backends.cpu_kernels.product import ProductKernel
from sglk.backends.cpu_kernels.visits import Visits

OfExperts: TypeAlias = Callable[[torch.Tensor, Any, Visits], torch.Tensor]


class ExpertKernels:
    """All experts of a layer in three calls, however many tokens each gets: none of them depends on another."""

    def __init__(self, product: ProductKernel, elementwise: ElementwiseKernels) -> None:
        self._product = product
        self._elementwise = elementwise

    def plain(
        self, x_TE: torch.Tensor, gate_up: Any, down: Any, weights_TC: torch.Tensor, ids_TC: torch.Tensor
    ) -> torch.Tensor:
        """Return y_TE; `gate_up` and `down` are what `pack_experts` returned."""
        return self._run(x_TE, gate_up, down, weights_TC, ids_TC)

    def quantised(
        self,
        x_TE: torch.Tensor,
        gate_up: Any,
        down: Any,
        weights_TC: torch.Tensor,
        ids_TC: torch.Tensor,
        experts: int,
        scheme: str,
    ) -> torch.Tensor:
        """Return y_TE; `gate_up` and `down` are what `pack_quantised` returned, of experts that fill their panels."""
        gate_up, down = (replace(each, shape=(each.shape[0] // experts, each.shape[1])) for each in (gate_up, down))
        return self._run(x_TE, gate_up, down, weights_TC, ids_TC)

    def _run(
        self, x_TE: torch.Tensor, gate_up: Any, down: Any, weights_TC: torch.Tensor, ids_TC: torch.Tensor
    ) -> torch.Tensor:
        visits = Visits.of(ids_TC)
        x_RE = x_TE.index_select(0, visits.tokens_R)
        hidden_RF = self._elementwise.silu_and_mul(self._product.of_experts(x_RE, gate_up, visits))
        y_RE = self._product.of_experts(hidden_RF, down, visits)
        return self._elementwise.weighted_sum(y_RE, visits.places_TC, weights_TC)
