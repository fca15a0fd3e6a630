"""From full precision to few bits by plain rounding, without calibration.

Letters: O outputs, T tokens, N rows of either kind, E inputs, G groups of neighbouring inputs that share a scale.
"""

import torch
import torch.nn.functional as F

from sglk.backends.quantised import MIDDLE, QuantisedMatrix, pack_nibbles

INT8_MAX = 127
FP8_MAX = 448.0
"""Largest value of e4m3 (Micikevicius et al. 2022, arXiv:2209.05433)."""


def quantise_int8(weight_OE: torch.Tensor, group_size: int) -> QuantisedMatrix:
    """Return symmetric int8 values with one fp32 scale per output and group."""
    values_OE, scales_OG = round_int8(weight_OE.float(), group_size)
    return QuantisedMatrix(values_OE, scales_OG, group_size)


def quantise_fp8(weight_OE: torch.Tensor, group_size: int) -> QuantisedMatrix:
    """Return e4m3 values with one fp32 scale per output and group."""
    weight_OGS = grouped(weight_OE.float(), group_size)
    scales_OG = weight_OGS.abs().amax(-1) / FP8_MAX
    values_OGS = (weight_OGS / _divisor(scales_OG)).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return QuantisedMatrix(_ungrouped(values_OGS, weight_OE), scales_OG, group_size)


def quantise_int4(weight_OE: torch.Tensor, group_size: int, symmetric: bool) -> QuantisedMatrix:
    """Return 4-bit values with one fp16 scale, and unless symmetric one fp16 zero point, per output and group.

    Zero points are no integers: sixteen steps from the smallest weight of a group to its largest, as in GGUF's Q4_1,
    whose own values come through unchanged.
    """
    weight_OGS = grouped(weight_OE.float(), group_size)
    if symmetric:
        scales_OG = (weight_OGS.abs().amax(-1) / (MIDDLE - 1)).half()
        zeros_OG = torch.full_like(scales_OG, MIDDLE)
    else:
        scales_OG, zeros_OG = _sixteen_steps(_fill_last_group(weight_OGS, weight_OE.shape[1]))
    values_OGS = (weight_OGS / _divisor(scales_OG)).add_(zeros_OG.unsqueeze(-1)).round_().clamp_(0, 15)
    packed = pack_nibbles(_ungrouped(values_OGS, weight_OE))
    return QuantisedMatrix(packed, scales_OG, group_size, None if symmetric else zeros_OG)


def _sixteen_steps(weight_OGS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fp16 scales_OG and zeros_OG that lay 0 on a group's smallest weight and 15 on its largest."""
    low_OG, high_OG = weight_OGS.aminmax(dim=-1)
    scales_OG = ((high_OG - low_OG) / 15).half().float()
    # A group of one value (within fp16) is -zero * scale for 0, with the value for a scale.
    constant_OG = high_OG - low_OG <= low_OG.abs() * 2**-11
    scales_OG = torch.where(constant_OG, low_OG, scales_OG)
    zeros_OG = torch.where(constant_OG, -1.0, -low_OG / _divisor(scales_OG).squeeze(-1))
    return scales_OG.half(), zeros_OG.half()


def _fill_last_group(weight_OGS: torch.Tensor, inputs: int) -> torch.Tensor:
    """Return the groups with repeats of a weight in place of the zeros behind the last input."""
    missing = weight_OGS.shape[1] * weight_OGS.shape[2] - inputs
    if missing:
        weight_OGS = weight_OGS.clone()
        weight_OGS[:, -1, -missing:] = weight_OGS[:, -1, :1]
    return weight_OGS


def round_int8(x_NE: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 values_NE and scales_NG with x = value * scale, each row on its own; `x_NE` is fp32.

    A row with NaN or infinity gets a scale that is NaN or infinite, so nothing hides it.
    """
    if group_size == x_NE.shape[1]:
        scales_N1 = x_NE.abs().amax(-1, keepdim=True).div_(INT8_MAX)
        return _to_int8(x_NE / _divisor(scales_N1.squeeze(1))), scales_N1
    x_NGS = grouped(x_NE, group_size)
    scales_NG = x_NGS.abs().amax(-1) / INT8_MAX
    values_NGS = _to_int8(x_NGS / _divisor(scales_NG))
    return _ungrouped(values_NGS, x_NE), scales_NG


def _to_int8(x: torch.Tensor) -> torch.Tensor:
    """Round in place; a scale below the smallest normal number is itself rounded, by up to half of it."""
    return x.round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8)


def grouped(x_NE: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return x_NGS, the last group filled up with zeros."""
    missing = -x_NE.shape[1] % group_size
    return F.pad(x_NE, (0, missing)).view(len(x_NE), -1, group_size)


def _ungrouped(x_NGS: torch.Tensor, like_NE: torch.Tensor) -> torch.Tensor:
    return x_NGS.flatten(1)[:, : like_NE.shape[1]].contiguous()


def _divisor(scales_NG: torch.Tensor) -> torch.Tensor:
    """Return the scales as divisors of [N, G, S]; values that are all 0 are divided by 1."""
    scales_NG1 = scales_NG.float().unsqueeze(-1)
    return torch.where(scales_NG1 == 0, 1.0, scales_NG1)
