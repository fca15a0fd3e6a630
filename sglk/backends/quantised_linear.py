"""Linear products with quantised weights in plain torch: the definition of correct for each scheme.

Letters: T tokens, E inputs, O outputs, G groups of inputs that share a scale. Traits: `in_features`, `out_features`,
`dtype` (of x and y), `group_size` (-1 = one group), `symmetric`, `reordered`.
"""

import torch
import torch.nn.functional as F

from sglk.backends.ops import define_op
from sglk.backends.quantise import round_int8
from sglk.backends.quantised import QuantisedMatrix, dequantise

EXACT_COLUMNS = 1024
"""Products of int8 that fp32 sums without rounding: 1024 * 127^2 < 2^24."""


@define_op
def linear_w8a8(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return y_TO of int8 weights and activations, summed in int32.

    Activations are rounded here, each token with a scale of its own per group (Dettmers et al. 2022,
    arXiv:2208.07339), so a token's result is a function of that token alone.
    """
    values_TE, scales_TG = round_int8(in_stored_order(x_TE, weight).float(), weight.group_size)
    y_TO = x_TE.new_zeros(len(x_TE), weight.shape[0], dtype=torch.float32)
    for group in range(scales_TG.shape[1]):
        columns = slice(group * weight.group_size, (group + 1) * weight.group_size)
        sums_TO = int8_product(values_TE[:, columns], weight.values[:, columns]).float()
        y_TO += sums_TO * scales_TG[:, group, None] * weight.scales_OG[:, group]
    return with_bias(y_TO, bias_O, x_TE.dtype)


@define_op
def linear_w8a16(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return y_TO of int8 weights and activations as they are."""
    y_TO = F.linear(in_stored_order(x_TE, weight).float(), dequantise(weight))
    return with_bias(y_TO, bias_O, x_TE.dtype)


@define_op
def linear_w4a16(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return y_TO of 4-bit weights and activations as they are."""
    return linear_w8a16.reference(x_TE, weight, bias_O)


@define_op
def linear_fp8(x_TE: torch.Tensor, weight: QuantisedMatrix, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return y_TO of e4m3 weights and activations as they are.

    A chip may round the activations to e4m3 too, each token with a scale of its own, which such checkpoints expect.
    """
    return linear_w8a16.reference(x_TE, weight, bias_O)


def in_stored_order(x_TE: torch.Tensor, weight: QuantisedMatrix) -> torch.Tensor:
    """Return the activations in the order of the weight's columns."""
    return x_TE if weight.order_E is None else x_TE.index_select(1, weight.order_E)


def int8_product(a_TE: torch.Tensor, b_OE: torch.Tensor) -> torch.Tensor:
    """Return a b^T of int8 matrices as int32, exact on any device that multiplies in fp32."""
    parts = [
        F.linear(a_TE[:, start : start + EXACT_COLUMNS].float(), b_OE[:, start : start + EXACT_COLUMNS].float())
        for start in range(0, a_TE.shape[1], EXACT_COLUMNS)
    ]
    return torch.stack([part.to(torch.int32) for part in parts]).sum(0, dtype=torch.int32)


def with_bias(y_TO: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Add the bias in fp32, in place, and convert."""
    return (y_TO if bias_O is None else y_TO.add_(bias_O)).to(dtype)
