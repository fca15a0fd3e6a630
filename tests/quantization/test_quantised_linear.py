"""Products with quantised weights: the reference against the dequantised matrix, the cpu backend against it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from sglk.backends import quantised_linear
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import Op
from sglk.backends.quantise import quantise_fp8, quantise_int4, quantise_int8
from sglk.backends.quantised import QuantisedMatrix, dequantise, dequantise_in_order

Quantiser = Callable[[torch.Tensor, int], QuantisedMatrix]

WEIGHT_ONLY: dict[str, tuple[Op[..., torch.Tensor], Quantiser]] = {
    "w8a16": (quantised_linear.linear_w8a16, quantise_int8),
    "w4a16": (quantised_linear.linear_w4a16, lambda w, size: quantise_int4(w, size, symmetric=False)),
    "w4a16 symmetric": (quantised_linear.linear_w4a16, lambda w, size: quantise_int4(w, size, symmetric=True)),
    "fp8": (quantised_linear.linear_fp8, quantise_fp8),
}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chosen(op: Op[..., torch.Tensor], matrix: QuantisedMatrix, dtype: str = "fp32") -> Callable[..., torch.Tensor]:
    """Return what the cpu backend runs for a matrix, its packing done."""
    outputs, inputs = matrix.shape
    bound = CpuBackend(num_threads=1, fallback="forbid").ops.select(
        op,
        in_features=inputs,
        out_features=outputs,
        dtype=dtype,
        group_size=-1 if matrix.group_size == inputs else matrix.group_size,
        symmetric=matrix.zeros_OG is None,
        reordered=matrix.order_E is not None,
    )
    weight = bound.packing.pack(matrix) if bound.packing else matrix
    return lambda x, bias: bound(x, weight, bias)


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
@pytest.mark.parametrize(("outputs", "inputs", "size"), [(48, 200, 64), (32, 128, 128), (3000, 576, 576)])
def test_weight_only_products_are_those_of_the_dequantised_matrix(
    scheme: str, outputs: int, inputs: int, size: int
) -> None:
    op, quantise = WEIGHT_ONLY[scheme]
    matrix, x, bias = quantise(randn(outputs, inputs), size), randn(5, inputs, seed=1), randn(outputs, seed=2)
    expected = F.linear(x, dequantise(matrix), bias)
    for run in (lambda: op.reference(x, matrix, bias), lambda: chosen(op, matrix)(x, bias)):
        torch.testing.assert_close(run(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [32, 64, 200])
def test_w8a8_is_off_by_no_more_than_the_rounding_of_activations(size: int) -> None:
    matrix, x, bias = quantise_int8(randn(48, 200), size), randn(7, 200, seed=1), randn(48, seed=2)
    x[3] *= 1000
    half_steps_TE = groupwise_amax(x, size) / 254
    bound = half_steps_TE @ dequantise(matrix).abs().t()
    exact = F.linear(x, dequantise(matrix), bias)
    y = quantised_linear.linear_w8a8.reference(x, matrix, bias)
    assert ((y - exact).abs() <= bound * 1.001 + 1e-4).all()
    torch.testing.assert_close(
        chosen(quantised_linear.linear_w8a8, matrix)(x, bias), y, rtol=1e-6, atol=1e-6 * float(y.abs().max())
    )


def test_int8_sums_are_exact_where_fp32_rounds() -> None:
    a, b = torch.full((2, 5000), 127, dtype=torch.int8), torch.full((3, 5000), 127, dtype=torch.int8)
    b[1], b[2, ::2] = -127, -127
    a[1, 7] = 126
    assert torch.equal(quantised_linear.int8_product(a, b), (a.long() @ b.long().t()).int())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_token_does_not_depend_on_its_neighbours(dtype: str) -> None:
    matrix = quantise_int8(randn(48, 256), 256)
    run = chosen(quantised_linear.linear_w8a8, matrix, dtype)
    x = randn(9, 256, seed=1).to({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    loud = x.clone()
    loud[1:] *= 1e4
    alone = run(x[:1], None)
    assert torch.equal(run(x, None)[:1], alone)
    assert torch.equal(run(loud, None)[:1], alone)


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_16_bit_activations_give_16_bit_results(scheme: str) -> None:
    op, quantise = WEIGHT_ONLY[scheme]
    matrix, x = quantise(randn(48, 256), 64), randn(5, 256, seed=1).bfloat16()
    y, expected = chosen(op, matrix, "bf16")(x, None), op.reference(x, matrix, None)
    assert y.dtype is expected.dtype is torch.bfloat16
    assert float((y - expected).float().norm() / expected.float().norm()) < 2**-7


def test_reordered_columns_meet_their_inputs() -> None:
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    plain = quantise_int4(randn(48, 256), 64, symmetric=False)
    matrix = QuantisedMatrix(plain.values, plain.scales_OG, 64, plain.zeros_OG, order)
    x = randn(5, 256, seed=1)
    expected = F.linear(x, dequantise_in_order(matrix))
    torch.testing.assert_close(chosen(quantised_linear.linear_w4a16, matrix)(x, None), expected, rtol=1e-5, atol=1e-4)
    y = chosen(quantised_linear.linear_w4a16, matrix, "bf16")(x.bfloat16(), None).float()
    assert float((y - expected).norm() / expected.norm()) < 2**-6


def groupwise_amax(x: torch.Tensor, size: int) -> torch.Tensor:
    columns = [x[:, start : start + size].abs().amax(1, keepdim=True) for start in range(0, x.shape[1], size)]
    return torch.cat(columns, 1).repeat_interleave(size, 1)[:, : x.shape[1]]
