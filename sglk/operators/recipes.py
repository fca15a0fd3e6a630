"""Per op: the shape class it is chosen by, how its arguments are made, and how its outputs are judged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglk.operators import judging
from sglk.operators.arguments import dense, experts, logits, paged, quantised

Make = Callable[[dense.Shape, torch.Generator], tuple[Any, ...]]
Judge = Callable[[dense.Shape, judging.Arguments, judging.Outputs, judging.Outputs], str | None]


@dataclass(frozen=True)
class Recipe:
    """How one op is tried."""

    traits: tuple[str, ...]
    """Numbers of a case that an implementation is chosen by, as layers name them; `dtype` too."""
    make: Make
    """Makes the arguments of a call, on the CPU."""
    judge: Judge = judging.close_outputs
    in_place: tuple[int, ...] = ()
    """Positions of the arguments that the op writes to; they are its outputs."""
    overwrites: tuple[int, ...] = ()
    """Positions of further arguments that the op may overwrite; all others stay as they are."""
    widen: bool = True
    """Whether the reference gets 16-bit arguments in fp32."""
    fp32_outputs: bool = False
    """Whether floating outputs are fp32 whatever the dtype of the arguments."""


_LINEAR = ("in_features", "out_features")
_QUANTISED_LINEAR = (*_LINEAR, "group_size", "symmetric", "reordered")
_POOL = ("head_dim", "kv_heads", "kv_dtype", "page_size")
_EXPERTS = ("experts", "top_k", "hidden", "width")
_ROUTING = ("experts", "top_k", "renormalise")

RECIPES: dict[str, Recipe] = {
    "embedding": Recipe(("size",), dense.embedding_arguments, judging.equal_outputs),
    "linear": Recipe(_LINEAR, dense.linear_arguments),
    "rms_norm": Recipe(("size",), dense.rms_norm_arguments),
    "add_rms_norm": Recipe(("size",), dense.add_rms_norm_arguments, overwrites=(0, 1)),
    "rope": Recipe(("head_dim",), dense.rope_arguments),
    "silu_and_mul": Recipe(("size",), dense.silu_and_mul_arguments),
    "store_kv": Recipe(_POOL, paged.store_kv_arguments, judging.stored_outputs, in_place=(2, 3, 5), widen=False),
    "attention_prefill": Recipe((*_POOL, "heads", "window"), paged.attention_arguments, judging.attention_outputs),
    "attention_decode": Recipe((*_POOL, "heads", "window"), paged.attention_arguments, judging.attention_outputs),
    "linear_w8a8": Recipe(_QUANTISED_LINEAR, quantised.linear_w8a8_arguments, judging.w8a8_outputs),
    "linear_w8a16": Recipe(_QUANTISED_LINEAR, quantised.linear_w8a16_arguments),
    "linear_w4a16": Recipe(_QUANTISED_LINEAR, quantised.linear_w4a16_arguments),
    "linear_fp8": Recipe(_QUANTISED_LINEAR, quantised.linear_fp8_arguments, judging.fp8_outputs),
    "route": Recipe(_ROUTING, experts.route_arguments, judging.routed_outputs, fp32_outputs=True),
    "route_grouped": Recipe(
        (*_ROUTING, "groups", "top_groups", "scoring"),
        experts.route_grouped_arguments,
        judging.routed_outputs,
        fp32_outputs=True,
    ),
    "run_experts": Recipe(_EXPERTS, experts.run_experts_arguments),
    "run_quantised_experts": Recipe(
        (*_EXPERTS, "scheme", "group_size", "symmetric"), experts.run_quantised_experts_arguments
    ),
    "add_gated": Recipe(("size",), dense.add_gated_arguments),
    "greedy": Recipe(("vocab_size",), logits.greedy_arguments, judging.equal_outputs),
    "sample": Recipe(("vocab_size",), logits.sample_arguments, judging.drawn_outputs),
    "adjust_logits": Recipe(("vocab_size",), logits.adjust_logits_arguments, in_place=(0,)),
    "mask_logits": Recipe(("vocab_size",), logits.mask_logits_arguments, judging.equal_outputs, in_place=(0,)),
    "token_logprobs": Recipe(
        ("vocab_size",), logits.token_logprobs_arguments, judging.likeliest_outputs, fp32_outputs=True
    ),
}
"""By name of the op."""
