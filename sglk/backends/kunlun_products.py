"""Experts and int8 products through the vendor's library. Letters as in `moe_ops.py` and `quantised_linear.py`.

int8 values come with the largest magnitude of their token or output, which stands for 127, not with a scale.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from sglk.backends import moe_ops, quantised_linear
from sglk.backends.constraints import at_most, one_of
from sglk.backends.kunlun_attention import DTYPES
from sglk.backends.kunlun_blocks import SWIGLU, silu_and_mul_with
from sglk.backends.kunlun_library import OPS, Adapter, Demand
from sglk.backends.quantise import INT8_MAX
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.quantised_moe import run_quantised_experts

Vendor: TypeAlias = Callable[..., Any]

STATISTIC_LINES = 12
"""Lines of the table in which the kernels count visits: one for each cluster of cores."""

MOST_EXPERTS = at_most("experts", 512)
"""Beyond that the kernels return an error and leave their results as they were."""

WHOLE = one_of("group_size", -1)

ROUTE = Demand(
    OPS,
    "moe_softmax_topk_norm",
    ("x", "normed_score", "topk_index", "block_statistic"),
    optional={"stable": True},
)
COUNT = Demand(OPS, "gen_block_statistic", positional=2)
SORT = Demand(
    OPS,
    "moe_pre_sorted",
    ("x", "topk_index", "block_statistic", "moe_expand", "moe_index", "expert_m", "sorted_tokens_num_lod"),
)
FC_KEYWORDS = ("x", "weight", "sorted_tokens_num_lod", "sorted_tokens_idx", "moe_topk", "y", "topk_ids")
MAXIMA = ("x_perchannel_max", "w_perchannel_max")
MULTIPLY = Demand(OPS, "moe_fc", FC_KEYWORDS, optional={"act": None} | dict.fromkeys(MAXIMA))
MULTIPLY_INT8 = Demand(OPS, "moe_fc", (*FC_KEYWORDS, *MAXIMA), optional={"act": None})
COMBINE = Demand(OPS, "moe_post", ("x", "moe_index", "normed_scale", "dequant_scale", "y"))
ROUND = Demand(OPS, "quant2d", positional=3, optional={"force_sdnn": True})
MATMUL = Demand(OPS, "matmul", ("bias", "x_pc_max", "w_pc_max"), positional=3)


def adapters() -> tuple[Adapter, ...]:
    """Return how tokens find their experts, and products."""
    experts, grouped = (DTYPES, MOST_EXPERTS), (one_of("scoring", "sigmoid"), one_of("renormalise", True), MOST_EXPERTS)
    int8 = (*experts, WHOLE, one_of("scheme", "w8a8"))
    return (
        Adapter(moe_ops.route, (ROUTE,), route_with, (one_of("renormalise", True), MOST_EXPERTS)),
        Adapter(moe_ops.route_grouped, (_grouped("block_static"),), route_grouped_with(0), grouped),
        Adapter(moe_ops.route_grouped, (_grouped("block_statistic"),), route_grouped_with(1), grouped),
        Adapter(moe_ops.run_experts, (COUNT, SORT, MULTIPLY, SWIGLU, COMBINE), experts_with, experts),
        Adapter(run_quantised_experts, (COUNT, SORT, MULTIPLY_INT8, SWIGLU, COMBINE, ROUND), int8_experts_with, int8),
        Adapter(quantised_linear.linear_w8a8, (ROUND, MATMUL), linear_with, (DTYPES, WHOLE)),
    )


def _grouped(statistic: str) -> Demand:
    return Demand(
        OPS,
        "moe_sigmoid_group_topk_norm",
        ("x", "topk_index", "norm_score", statistic, "bias", "scale", "n_group", "topk_group"),
    )


def route_with(softmax_topk_norm: Vendor) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return `route`. Assumed: softmax over all experts in fp32, and the chosen weights scaled to sum to 1."""

    def route(logits_TX: torch.Tensor, top_k: int, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
        weights_TC, ids_TC = _choices(logits_TX, top_k)
        softmax_topk_norm(
            x=logits_TX.float().contiguous(), normed_score=weights_TC, topk_index=ids_TC, block_statistic=None
        )
        return weights_TC, ids_TC.long()

    return route


def route_grouped_with(spare: int) -> Callable[[Vendor], Callable[..., tuple[torch.Tensor, torch.Tensor]]]:
    """Return what makes `route_grouped`. Assumed: versions that call the table of visits `block_statistic` have a
    column more in it (`spare`); the bias counts for the choice alone, and the weights sum to `scale`."""

    def build(sigmoid_group_topk_norm: Vendor) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
        def route_grouped(
            logits_TX: torch.Tensor,
            bias_X: torch.Tensor | None,
            top_k: int,
            groups: int,
            top_groups: int,
            scoring: moe_ops.Scoring,
            renormalise: bool,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            experts = logits_TX.shape[1]
            weights_TC, ids_TC = _choices(logits_TX, top_k)
            statistic = _table(experts + spare, ids_TC)
            sigmoid_group_topk_norm(
                x=logits_TX.float().contiguous(),
                topk_index=ids_TC,
                norm_score=weights_TC,
                **{"block_statistic" if spare else "block_static": statistic},
                bias=torch.zeros_like(logits_TX[0], dtype=torch.float32) if bias_X is None else bias_X.float(),
                scale=1.0,
                n_group=groups,
                topk_group=top_groups,
            )
            return weights_TC, ids_TC.long()

        return route_grouped

    return build


def experts_with(
    count: Vendor, sort: Vendor, multiply: Vendor, swiglu: Vendor, combine: Vendor
) -> Callable[..., torch.Tensor]:
    """Return `run_experts`. Assumed: see `_Visits`; the activation stays apart, fused into the product it is wrong."""
    activate = silu_and_mul_with(swiglu)

    def run_experts(
        x_TE: torch.Tensor,
        gate_up_X2FE: torch.Tensor,
        down_XEF: torch.Tensor,
        weights_TC: torch.Tensor,
        ids_TC: torch.Tensor,
    ) -> torch.Tensor:
        visits = _Visits(x_TE, ids_TC, len(gate_up_X2FE), count, sort)
        hidden_RF = activate(visits.multiply(multiply, visits.x_RE, gate_up_X2FE, x_TE.dtype))
        return visits.combine(combine, visits.multiply(multiply, hidden_RF, down_XEF, x_TE.dtype), weights_TC)

    return run_experts


def int8_experts_with(
    count: Vendor, sort: Vendor, multiply: Vendor, swiglu: Vendor, combine: Vendor, to_int8: Vendor
) -> Callable[..., torch.Tensor]:
    """Return `run_quantised_experts` for w8a8. Assumed: as `experts_with` and `linear_with`."""
    activate = silu_and_mul_with(swiglu)

    def run_quantised_experts(
        x_TE: torch.Tensor,
        gate_up: QuantisedMatrix,
        down: QuantisedMatrix,
        weights_TC: torch.Tensor,
        ids_TC: torch.Tensor,
        experts: int,
        scheme: str,
    ) -> torch.Tensor:
        visits = _Visits(x_TE, ids_TC, experts, count, sort)

        def product(x_RE: torch.Tensor, weight: QuantisedMatrix) -> torch.Tensor:
            values_RE, maxima_R = _rounded(quantised_linear.in_stored_order(x_RE, weight), to_int8)
            maxima = dict(zip(MAXIMA, (maxima_R.unsqueeze(1), _maxima(weight).view(experts, -1)), strict=True))
            return visits.multiply(
                multiply, values_RE, weight.values.view(experts, -1, weight.shape[1]), x_TE.dtype, **maxima
            )

        return visits.combine(combine, product(activate(product(visits.x_RE, gate_up)), down), weights_TC)

    return run_quantised_experts


def linear_with(to_int8: Vendor, matmul: Vendor) -> Callable[..., torch.Tensor]:
    """Return `linear_w8a8`. Assumed: (x, values, largest of each token) and (values, weight [O, E], y), the bias in
    fp32; products are multiplied by both maxima and divided by 127 twice."""

    def linear_w8a8(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
        values_TE, maxima_T = _rounded(quantised_linear.in_stored_order(x_TE, weight), to_int8)
        y_TO = x_TE.new_empty(len(x_TE), weight.shape[0])
        matmul(
            values_TE,
            weight.values,
            y_TO,
            bias=None if bias_O is None else bias_O.float(),
            x_pc_max=maxima_T,
            w_pc_max=_maxima(weight),
        )
        return y_TO

    return linear_w8a8


class _Visits:
    """Tokens copied for each expert that they visit, expert after expert.

    Assumed: ids are int32; `moe_index` says at which place the copy for a token's choice is, and
    `sorted_tokens_num_lod` where the copies of an expert begin; products keep that order, and `moe_post` takes a
    token's results from their places, multiplied by its weights.
    """

    def __init__(self, x_TE: torch.Tensor, ids_TC: torch.Tensor, experts: int, count: Vendor, sort: Vendor) -> None:
        self.ids_TC = ids_TC.to(torch.int32).contiguous()
        self.x_RE = x_TE.new_empty(ids_TC.numel(), x_TE.shape[1])
        self.places_R = self.ids_TC.new_zeros(ids_TC.numel())
        self.starts_X = self.ids_TC.new_zeros(experts + 1)
        statistic = _table(experts, self.ids_TC)
        count(self.ids_TC, statistic)
        sort(
            x=x_TE.contiguous(),
            topk_index=self.ids_TC,
            block_statistic=statistic,
            moe_expand=self.x_RE,
            moe_index=self.places_R,
            expert_m=self.ids_TC.new_zeros(experts),
            sorted_tokens_num_lod=self.starts_X,
        )

    def multiply(
        self, product: Vendor, x_RE: torch.Tensor, weight_XOE: torch.Tensor, dtype: torch.dtype, **maxima: torch.Tensor
    ) -> torch.Tensor:
        """Return y_RO, each copy multiplied by the weight of its expert."""
        y_TCO = torch.empty((*self.ids_TC.shape, weight_XOE.shape[1]), dtype=dtype, device=x_RE.device)
        product(
            x=x_RE,
            weight=weight_XOE,
            sorted_tokens_num_lod=self.starts_X,
            sorted_tokens_idx=self.places_R,
            moe_topk=self.ids_TC.shape[1],
            y=y_TCO,
            topk_ids=self.ids_TC,
            **maxima,
        )
        return y_TCO.flatten(0, 1)

    def combine(self, add: Vendor, y_RE: torch.Tensor, weights_TC: torch.Tensor) -> torch.Tensor:
        """Return out_TE, the weighted sum of each token's copies."""
        tokens, chosen = self.ids_TC.shape
        out_TE = y_RE.new_empty(tokens, y_RE.shape[1])
        add(
            x=y_RE.view(tokens, chosen, -1),
            moe_index=self.places_R.view(tokens, chosen),
            normed_scale=weights_TC.float(),
            dequant_scale=torch.ones_like(weights_TC, dtype=torch.float32),
            y=out_TE,
        )
        return out_TE


def _choices(logits_TX: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return room for weights_TC and ids_TC."""
    shape, device = (len(logits_TX), top_k), logits_TX.device
    return torch.empty(shape, device=device), torch.empty(shape, dtype=torch.int32, device=device)


def _table(columns: int, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros((STATISTIC_LINES, columns), dtype=torch.int32, device=like.device)


def _rounded(x_RE: torch.Tensor, to_int8: Vendor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 values and the largest magnitude of each row."""
    x_RE = x_RE.contiguous()
    values_RE = torch.empty_like(x_RE, dtype=torch.int8)
    maxima_R = torch.empty(len(x_RE), dtype=torch.float32, device=x_RE.device)
    to_int8(x_RE, values_RE, maxima_R)
    return values_RE, maxima_R


def _maxima(weight: QuantisedMatrix) -> torch.Tensor:
    """Return the magnitude that 127 stands for in each output."""
    return weight.scales_OG.float().flatten() * INT8_MAX
