"""Arguments of quantised products: values drawn as they are stored, so that a large matrix takes no detour by fp32.

Letters as in `quantised_linear.py`.
"""

from typing import Any

import torch

from sglk.backends.quantised import QuantisedMatrix
from sglk.operators.arguments.dense import Shape, normal

TYPICAL = {"w8a8": 73.0, "w8a16": 73.0, "w4a16": 4.6, "fp8": 64.0}
"""Standard deviation of the stored values."""


def quantised_linear_arguments(scheme: str, shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, the weight and bias_O or None."""
    inputs, outputs, dtype = shape["in_features"], shape["out_features"], shape["dtype"]
    x_TE = normal(generator, dtype, shape["tokens"], inputs)
    weight = quantised_matrix(scheme, shape, outputs, inputs, generator)
    return x_TE, weight, normal(generator, dtype, outputs) if shape["bias"] else None


def linear_w8a8_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, an int8 weight and bias_O or None."""
    return quantised_linear_arguments("w8a8", shape, generator)


def linear_w8a16_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, an int8 weight and bias_O or None."""
    return quantised_linear_arguments("w8a16", shape, generator)


def linear_w4a16_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, a 4-bit weight and bias_O or None."""
    return quantised_linear_arguments("w4a16", shape, generator)


def linear_fp8_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, an e4m3 weight and bias_O or None."""
    return quantised_linear_arguments("fp8", shape, generator)


def quantised_matrix(
    scheme: str, shape: Shape, outputs: int, inputs: int, generator: torch.Generator
) -> QuantisedMatrix:
    """Return a weight whose products keep the size of their inputs."""
    group_size = inputs if shape["group_size"] == -1 else min(shape["group_size"], inputs)
    groups = -(-inputs // group_size)
    scales_OG = (0.5 + torch.rand((outputs, groups), generator=generator)) / (TYPICAL[scheme] * inputs**0.5)
    if scheme == "w4a16":
        scales_OG = scales_OG.half()
    zeros_OG = None
    if not shape["symmetric"]:
        middle = 7 if scheme == "w4a16" else 0
        zeros_OG = (middle + torch.rand((outputs, groups), generator=generator)).half()
    order_E = torch.randperm(inputs, generator=generator) if shape.get("reordered") else None
    return QuantisedMatrix(stored_values(scheme, outputs, inputs, generator), scales_OG, group_size, zeros_OG, order_E)


def stored_values(scheme: str, outputs: int, inputs: int, generator: torch.Generator) -> torch.Tensor:
    """Return random values_OE, or bytes of two values each."""
    if scheme == "w4a16":
        return torch.randint(256, (outputs, inputs // 2), dtype=torch.uint8, generator=generator)
    if scheme == "fp8":
        return normal(generator, "fp32", outputs, inputs).mul_(64).clamp_(-448, 448).to(torch.float8_e4m3fn)
    return torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, generator=generator)
