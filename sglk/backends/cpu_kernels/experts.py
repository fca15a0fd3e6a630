"""Experts with own kernels. Letters: T tokens, E hidden width, C experts chosen for a token, R = T * C visits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from sglk.backends.cpu_kernels.elementwise import ElementwiseKernels
from sglk.backends.cpu_kernels.int8 import Int8Kernel
from sglk.backends.cpu_kernels.product import ProductKernel
from sglk.backends.cpu_kernels.visits import Visits

OfExperts: TypeAlias = Callable[[torch.Tensor, Any, Visits], torch.Tensor]


class ExpertKernels:
    """All experts of a layer in a few calls, however many tokens each gets: none of them depends on another.

    What passes between products is rounded to the dtype of x, as it is where each is an op of its own.
    """

    def __init__(self, product: ProductKernel, int8: Int8Kernel, elementwise: ElementwiseKernels) -> None:
        self._product = product
        self._int8 = int8
        self._elementwise = elementwise

    def plain(
        self, x_TE: torch.Tensor, gate_up_X2FE: Any, down_XEF: Any, weights_TC: torch.Tensor, ids_TC: torch.Tensor
    ) -> torch.Tensor:
        """Return y_TE; the experts' weights are what `pack_experts` returned."""
        return self._run(self._product.of_experts, x_TE, gate_up_X2FE, down_XEF, weights_TC, ids_TC)

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
        """Return y_TE; `gate_up` and `down` are what `pack_quantised` returned."""
        _check(gate_up, down, experts)
        gate_up, down = (replace(each, shape=(each.shape[0] // experts, each.shape[1])) for each in (gate_up, down))
        return self._run(self._product.of_experts, x_TE, gate_up, down, weights_TC, ids_TC)

    def w8a8(
        self,
        x_TE: torch.Tensor,
        gate_up: Any,
        down: Any,
        weights_TC: torch.Tensor,
        ids_TC: torch.Tensor,
        experts: int,
        scheme: str,
    ) -> torch.Tensor:
        """Return y_TE; `gate_up` and `down` are what `pack_int8` returned."""
        _check(gate_up, down, experts)
        return self._run(self._int8.of_experts, x_TE, gate_up, down, weights_TC, ids_TC)

    def _run(
        self,
        multiply: OfExperts,
        x_TE: torch.Tensor,
        gate_up: Any,
        down: Any,
        weights_TC: torch.Tensor,
        ids_TC: torch.Tensor,
    ) -> torch.Tensor:
        visits, dtype = Visits.of(ids_TC), x_TE.dtype
        x_RE = x_TE.index_select(0, visits.tokens_R).float()
        gate_up_R2F = multiply(x_RE, gate_up, visits).to(dtype).float()
        hidden_RF = self._elementwise.silu_and_mul(gate_up_R2F).to(dtype).float()
        y_RE = multiply(hidden_RF, down, visits).to(dtype).float()
        return self._elementwise.weighted_sum(y_RE, visits.places_TC, weights_TC).to(dtype)


def _check(gate_up: Any, down: Any, experts: int) -> None:
    # C reads wherever it is told to.
    for packed in (gate_up, down):
        if packed.original.matrices != experts:
            raise ValueError(f"a matrix of {packed.original.matrices} was packed, one of {experts} experts is expected")
