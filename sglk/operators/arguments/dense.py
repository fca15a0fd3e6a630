"""Arguments of the ops of plain blocks. Letters as in `reference.py`.

`shape` are the numbers of an OpCase. Where a layer hands an op a view of a larger tensor, these are such views too.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from sglk.backends.dtypes import TORCH_DTYPES

Shape: TypeAlias = Mapping[str, Any]

EPS = 1e-6
"""The epsilon of most models' norms."""


def normal(generator: torch.Generator, dtype: str, *sizes: int) -> torch.Tensor:
    """Return normal numbers, drawn in fp32."""
    return torch.randn(sizes, generator=generator).to(TORCH_DTYPES[dtype])


def scaled_weight(generator: torch.Generator, dtype: str, *sizes: int) -> torch.Tensor:
    """Return uniform numbers of standard deviation 1/sqrt(inputs), so that products keep the size of their inputs."""
    bound = (3 / sizes[-1]) ** 0.5
    return torch.empty(sizes).uniform_(-bound, bound, generator=generator).to(TORCH_DTYPES[dtype])


def embedding_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return ids_T, the first and the last id among them, and weight_VE."""
    ids_T = torch.randint(shape["vocab_size"], (shape["tokens"],), generator=generator)
    ids_T[0], ids_T[-1] = 0, shape["vocab_size"] - 1
    return ids_T, normal(generator, shape["dtype"], shape["vocab_size"], shape["size"])


def linear_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, weight_OE and bias_O or None."""
    inputs, outputs, dtype = shape["in_features"], shape["out_features"], shape["dtype"]
    x_TE = normal(generator, dtype, shape["tokens"], inputs)
    weight_OE = scaled_weight(generator, dtype, outputs, inputs)
    return x_TE, weight_OE, normal(generator, dtype, outputs) if shape["bias"] else None


def rms_norm_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, weight_E and eps; with `heads` above 0, x_TND as the query heads lie beside those of the keys."""
    dtype, size, heads = shape["dtype"], shape["size"], shape["heads"]
    x = normal(generator, dtype, shape["tokens"], *((heads + 1, size) if heads else (size,)))
    return x[:, :heads] if heads else x, 1 + normal(generator, dtype, size) / 4, EPS


def add_rms_norm_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, residual_TE, weight_E and eps."""
    dtype, tokens, size = shape["dtype"], shape["tokens"], shape["size"]
    x_TE, residual_TE = (normal(generator, dtype, tokens, size) for _ in range(2))
    return x_TE, residual_TE, 1 + normal(generator, dtype, size) / 4, EPS


def rope_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TND as it lies before the value heads, cos_TD and sin_TD."""
    dtype, tokens, heads, width = shape["dtype"], shape["tokens"], shape["heads"], shape["head_dim"]
    angles_TD = torch.rand((tokens, width // 2), generator=generator).mul(100).repeat(1, 2)
    x_TND = normal(generator, dtype, tokens, heads + 1, width)[:, :heads]
    return x_TND, angles_TD.cos().to(TORCH_DTYPES[dtype]), angles_TD.sin().to(TORCH_DTYPES[dtype])


def silu_and_mul_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_T2F."""
    return (normal(generator, shape["dtype"], shape["tokens"], 2 * shape["size"]),)


def add_gated_arguments(shape: Shape, generator: torch.Generator) -> tuple[Any, ...]:
    """Return x_TE, gate_T1 and y_TE."""
    dtype, tokens, size = shape["dtype"], shape["tokens"], shape["size"]
    x_TE, gate_T1, y_TE = (normal(generator, dtype, tokens, width) for width in (size, 1, size))
    return x_TE, gate_T1, y_TE
