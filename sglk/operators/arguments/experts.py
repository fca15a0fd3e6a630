"""Arguments of the ops of blocks made of experts. Letters as in `moe_ops.py`.

No two scores of a token are alike, so that only one choice of experts is right.
"""

from dataclasses import replace
from typing import Any

import torch

from sglk.backends.dtypes import TORCH_DTYPES
from sglk.operators.arguments.dense import Shape, normal, scaled_weight
from sglk.operators.arguments.quantised import quantised_matrix


def route_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return logits_TX, top_k and renormalise."""
    return distinct_logits(shape, generator), shape["top_k"], shape["renormalise"]


def route_grouped_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return logits_TX, bias_X or None, and the numbers of the routing."""
    bias_X = torch.rand(shape["experts"], generator=generator) / 100 if shape["scoring"] == "sigmoid" else None
    numbers = (shape[name] for name in ("top_k", "groups", "top_groups", "scoring", "renormalise"))
    return distinct_logits(shape, generator), bias_X, *numbers


def run_experts_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, gate_up_X2FE, down_XEF, weights_TC and ids_TC."""
    experts, hidden, width, dtype = (shape[name] for name in ("experts", "hidden", "width", "dtype"))
    x_TE = normal(generator, dtype, shape["tokens"], hidden)
    gate_up_X2FE = scaled_weight(generator, dtype, experts, 2 * width, hidden)
    down_XEF = scaled_weight(generator, dtype, experts, hidden, width)
    return x_TE, gate_up_X2FE, down_XEF, *visits(shape, generator)


def run_quantised_experts_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, gate_up, down, weights_TC, ids_TC, the number of experts and the scheme."""
    experts, hidden, width, scheme = (shape[name] for name in ("experts", "hidden", "width", "scheme"))
    x_TE = normal(generator, shape["dtype"], shape["tokens"], hidden)
    gate_up = replace(quantised_matrix(scheme, shape, experts * 2 * width, hidden, generator), matrices=experts)
    down = replace(quantised_matrix(scheme, shape, experts * hidden, width, generator), matrices=experts)
    return x_TE, gate_up, down, *visits(shape, generator), experts, scheme


def distinct_logits(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return logits_TX, in each row the same numbers in another order, a sixteenth apart: so far bf16 tells apart."""
    tokens, experts = shape["tokens"], shape["experts"]
    order_TX = torch.rand((tokens, experts), generator=generator).argsort(-1)
    logits_TX: torch.Tensor = (order_TX - experts // 2) / 16
    return logits_TX.to(TORCH_DTYPES[shape["dtype"]])


def visits(shape: Shape, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights_TC (fp32, summing to 1) and ids_TC: each token's experts, all different."""
    logits_TX = torch.randn((shape["tokens"], shape["experts"]), generator=generator)
    weights_TC, ids_TC = logits_TX.softmax(-1).topk(shape["top_k"], dim=-1)
    return weights_TC / weights_TC.sum(-1, keepdim=True), ids_TC
