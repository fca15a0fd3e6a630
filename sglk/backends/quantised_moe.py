"""Experts with quantised weights, in plain torch: the definition of correct.

Letters: T tokens, X experts, C experts chosen for a token, E hidden width, F width of an expert, R visits of an expert.
Traits: `experts`, `top_k`, `hidden`, `width`, `dtype`, `scheme`, `group_size` (-1 = one group), `symmetric`.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch

from sglk.backends import quantised_linear, reference
from sglk.backends.moe_ops import visits_by_expert
from sglk.backends.ops import define_op
from sglk.backends.quantised import QuantisedMatrix

Product: TypeAlias = Callable[[torch.Tensor, QuantisedMatrix, torch.Tensor | None], torch.Tensor]

PRODUCTS: dict[str, Product] = {
    "w8a8": quantised_linear.linear_w8a8.reference,
    "w8a16": quantised_linear.linear_w8a16.reference,
    "w4a16": quantised_linear.linear_w4a16.reference,
    "fp8": quantised_linear.linear_fp8.reference,
}


@define_op
def run_quantised_experts(
    x_TE: torch.Tensor,
    gate_up: QuantisedMatrix,
    down: QuantisedMatrix,
    weights_TC: torch.Tensor,
    ids_TC: torch.Tensor,
    experts: int,
    scheme: str,
) -> torch.Tensor:
    """Return y_TE as `run_experts` does, each product one of `scheme`.

    `gate_up` is [X * 2F, E] and `down` [X * E, F], each of X `matrices`, expert after expert.
    """
    return weighted_experts(x_TE, gate_up, down, weights_TC, ids_TC, experts, PRODUCTS[scheme])


def weighted_experts(
    x_TE: torch.Tensor,
    gate_up: QuantisedMatrix,
    down: QuantisedMatrix,
    weights_TC: torch.Tensor,
    ids_TC: torch.Tensor,
    experts: int,
    product: Product,
) -> torch.Tensor:
    """Run each expert once, on all of its tokens; the sum is kept in fp32."""
    out_TE = torch.zeros_like(x_TE, dtype=torch.float32)
    for expert, visits_R in enumerate(visits_by_expert(ids_TC, experts)):
        if not len(visits_R):
            continue
        tokens_R = visits_R // ids_TC.shape[1]
        x_R2F = product(x_TE[tokens_R], _of_expert(gate_up, expert, experts), None)
        y_RE = product(reference.silu_and_mul.reference(x_R2F), _of_expert(down, expert, experts), None)
        out_TE.index_add_(0, tokens_R, y_RE.float() * weights_TC.flatten()[visits_R].unsqueeze(1))
    return out_TE.to(x_TE.dtype)


def _of_expert(stacked: QuantisedMatrix, expert: int, experts: int) -> QuantisedMatrix:
    rows = stacked.shape[0] // experts
    return stacked.rows(slice(expert * rows, (expert + 1) * rows))
