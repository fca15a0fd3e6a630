"""Norms, activation, rotation and sampling through the vendor's libraries. Letters as in the ops' references."""

from collections.abc import Callable
from typing import Any

import torch

from sglk.backends import reference, sampling_ops
from sglk.backends.constraints import multiple_of, one_of
from sglk.backends.kunlun_attention import DTYPES, HEAD_DIMS
from sglk.backends.kunlun_library import GATE_OPS, OPS, Adapter, Demand

NORM = Demand(OPS, "rmsnorm", ("x", "weight", "out|output", "eps|epsilon"))
ADD_NORM = Demand(
    OPS, "add_rmsnorm", ("x", "residual", "weight", "out|output", "eps|epsilon", "residual_output|residual_tensor")
)
SWIGLU = Demand(OPS, "swiglu", ("x", "y"))
ROTATE = Demand(
    GATE_OPS,
    "flashinfer_rotary_embedding",
    ("positions", "rotary_dim", "head_size", "cos_sin_cache", "is_neox_style", "query", "key", "offsets"),
)
TOP_K = Demand(OPS, "top_k_renorm_probs", positional=2)
TOP_P = Demand(OPS, "top_p_renorm_probs", positional=2)

ALIGNED = multiple_of("size", 4)
"""Both halves of a row of 16-bit values then fill 16 bytes, which the activation demands."""


def adapters() -> tuple[Adapter, ...]:
    """Return what the blocks of a decoder are made of beside attention and products, and the choice of tokens."""
    return (
        Adapter(reference.rms_norm, (NORM,), rms_norm_with, (DTYPES,)),
        Adapter(reference.add_rms_norm, (ADD_NORM,), add_rms_norm_with, (DTYPES,)),
        Adapter(reference.silu_and_mul, (SWIGLU,), silu_and_mul_with, (DTYPES, ALIGNED)),
        Adapter(reference.rope, (ROTATE,), rope_with, (DTYPES, one_of("head_dim", *HEAD_DIMS))),
        Adapter(sampling_ops.sample, (TOP_K, TOP_P), sample_with),
    )


def rms_norm_with(rmsnorm: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return `rms_norm`. Assumed: over the last axis of a contiguous x, weight in the dtype of x."""

    def rms_norm(x_TE: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
        x_TE = x_TE.contiguous()
        out_TE = torch.empty_like(x_TE)
        rmsnorm(x=x_TE, weight=weight_E, out=out_TE, eps=eps)
        return out_TE

    return rms_norm


def add_rms_norm_with(add_rmsnorm: Callable[..., Any]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return `add_rms_norm`. Assumed: `residual_output` may be the residual itself, and gets x + residual."""

    def add_rms_norm(
        x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x_TE, out_TE = x_TE.contiguous(), torch.empty_like(residual_TE)
        add_rmsnorm(x=x_TE, residual=residual_TE, weight=weight_E, out=out_TE, eps=eps, residual_output=residual_TE)
        return out_TE, residual_TE

    return add_rms_norm


def silu_and_mul_with(swiglu: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return `silu_and_mul`. Assumed: y = silu(first half of x) * second half."""

    def silu_and_mul(x_T2F: torch.Tensor) -> torch.Tensor:
        y_TF = x_T2F.new_empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2))
        swiglu(x=x_T2F.contiguous(), y=y_TF)
        return y_TF

    return silu_and_mul


def rope_with(rotate: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return `rope`. Assumed: the cache has a line of cosines and then sines for each position, in fp32, and the
    rotated query is returned. Ours has a line for each token, so a token's position is its place."""

    def rope(x_TND: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> torch.Tensor:
        tokens, _, width = x_TND.shape
        half = width // 2
        query, _ = rotate(
            positions=torch.arange(tokens, device=x_TND.device),
            rotary_dim=width,
            head_size=width,
            cos_sin_cache=torch.cat((cos_TD[:, :half], sin_TD[:, :half]), dim=-1).float(),
            is_neox_style=True,
            query=x_TND.contiguous(),
            # All heads are queries here; what the function wants beside them is thrown away.
            key=x_TND[:, :1].contiguous(),
            offsets=None,
        )
        return query.view(x_TND.shape)  # type: ignore[no-any-return]

    return rope


def sample_with(top_k_renorm: Callable[..., Any], top_p_renorm: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return `sample`. Assumed: both return probabilities that sum to 1 per row, 0 for what is cut, and a top_k of 0
    cuts nothing. Among ids of equal probability at the edge they may keep more than the reference does."""

    def sample(
        logits_BV: torch.Tensor,
        temperature_B: torch.Tensor,
        top_k_B: torch.Tensor,
        top_p_B: torch.Tensor,
        min_p_B: torch.Tensor,
        uniform_B: torch.Tensor,
    ) -> torch.Tensor:
        probs_BV = sampling_ops.scaled_probs(logits_BV, temperature_B)
        probs_BV = top_p_renorm(top_k_renorm(probs_BV, top_k_B.to(torch.int32)), top_p_B)
        return sampling_ops.draw(sampling_ops.drop_unlikely(probs_BV, min_p_B), uniform_B)

    return sample
