"""Quantised products of the cuda backend. Letters as in `quantised_linear.py`."""

from functools import partial

import torch
import torch.nn.functional as F

from sglk.backends import quantised_linear as reference
from sglk.backends.constraints import multiple_of, one_of
from sglk.backends.ops import OpRegistry
from sglk.backends.quantise import FP8_MAX, round_int8
from sglk.backends.quantised import QuantisedMatrix, dequantise
from sglk.backends.quantised_moe import Product, run_quantised_experts, weighted_experts

BLOCK = 2**24
"""Weights that are dequantised at a time: 64 MiB of fp32 beside the model."""

FEWEST_TOKENS = 17
"""torch's int8 product takes no fewer rows."""


def register_cuda_quantised_ops(ops: OpRegistry, provider: str, compute_capability: tuple[int, int]) -> None:
    """Offer every scheme: products in int8 where shapes are multiples of 8, in fp8 from compute capability 9.0 on."""
    for op in (reference.linear_w8a16, reference.linear_w4a16, reference.linear_fp8):
        ops.register(op, provider, linear_dequantised)
    ops.register(reference.linear_w8a8, provider, reference.linear_w8a8.reference)
    ops.register(run_quantised_experts, provider, run_quantised_experts.reference)
    ops.register(
        run_quantised_experts, provider, _experts(linear_dequantised), one_of("scheme", "w8a16", "w4a16", "fp8")
    )
    whole, rows = one_of("group_size", -1), ("in_features", "out_features")
    experts = (multiple_of("hidden", 8), multiple_of("width", 8))
    if compute_capability >= (7, 5):
        ops.register(reference.linear_w8a8, provider, linear_w8a8, whole, *(multiple_of(name, 8) for name in rows))
        ops.register(run_quantised_experts, provider, _experts(linear_w8a8), one_of("scheme", "w8a8"), whole, *experts)
    if compute_capability >= (9, 0):
        demands = (one_of("dtype", "bf16"), whole, *(multiple_of(name, 16) for name in rows))
        ops.register(reference.linear_fp8, provider, linear_fp8, *demands)


def linear_w8a8(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Multiply in int8, summing in int32."""
    values_TE, scales_T1 = round_int8(reference.in_stored_order(x_TE, weight).float(), weight.group_size)
    tokens = len(values_TE)
    if tokens < FEWEST_TOKENS:
        values_TE = F.pad(values_TE, (0, 0, 0, FEWEST_TOKENS - tokens))
    y_TO = torch._int_mm(values_TE, weight.values.t())[:tokens].float()
    y_TO.mul_(scales_T1).mul_(weight.scales_OG.squeeze(1))
    return reference.with_bias(y_TO, bias_O, x_TE.dtype)


def linear_fp8(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Round each token to e4m3 with a scale of its own, and multiply in fp8, summing in fp32."""
    ordered_TE = reference.in_stored_order(x_TE, weight).float()
    scales_T1 = ordered_TE.abs().amax(-1, keepdim=True) / FP8_MAX
    divisors_T1 = torch.where(scales_T1 == 0, 1.0, scales_T1)
    values_TE = (ordered_TE / divisors_T1).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    y_TO = torch._scaled_mm(
        values_TE,
        weight.values.t(),
        scale_a=divisors_T1,
        scale_b=weight.scales_OG.float().t().contiguous(),
        out_dtype=x_TE.dtype,
    )
    return y_TO if bias_O is None else y_TO.add_(bias_O)


def linear_dequantised(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Dequantise a block of outputs at a time, and multiply in the dtype of the activations."""
    ordered_TE = reference.in_stored_order(x_TE, weight)
    outputs, inputs = weight.shape
    step = max(BLOCK // inputs, 16)
    blocks = [slice(start, min(start + step, outputs)) for start in range(0, outputs, step)]
    products = [F.linear(ordered_TE, dequantise(weight.rows(block)).to(x_TE.dtype)) for block in blocks]
    y_TO = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
    return y_TO if bias_O is None else y_TO.add_(bias_O)


def _experts(product: Product) -> "partial[torch.Tensor]":
    return partial(_run_experts, product)


def _run_experts(
    product: Product,
    x_TE: torch.Tensor,
    gate_up: QuantisedMatrix,
    down: QuantisedMatrix,
    weights_TC: torch.Tensor,
    ids_TC: torch.Tensor,
    experts: int,
    scheme: str,
) -> torch.Tensor:
    """Run each chosen expert through `product`."""
    return weighted_experts(x_TE, gate_up, down, weights_TC, ids_TC, experts, product)
