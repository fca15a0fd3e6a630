"""Rounding to few bits: how far a number may move, and what never gets lost."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglk.backends.quantise import quantise_fp8, quantise_int4, quantise_int8, round_int8
from sglk.backends.quantised import QuantisedMatrix, dequantise, dequantise_in_order, pack_nibbles, unpack_nibbles

GROUPS = [32, 64, 128, 200]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weight() -> torch.Tensor:
    """A matrix whose rows differ in size by a million, one of them all zeros."""
    rows = randn(6, 200) * torch.logspace(-3, 3, 6).unsqueeze(1)
    rows[2] = 0
    return rows


@pytest.mark.parametrize("group_size", GROUPS)
def test_int8_is_within_half_a_step_of_its_group(group_size: int) -> None:
    matrix = quantise_int8(weight(), group_size)
    assert within_half_a_step(matrix, weight())
    assert matrix.values.dtype is torch.int8
    assert matrix.scales_OG.shape == (6, -(-200 // group_size))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", GROUPS)
def test_int4_is_within_half_a_step_of_its_group(group_size: int, symmetric: bool) -> None:
    matrix = quantise_int4(weight(), group_size, symmetric)
    # Scale and zero point are kept in fp16.
    assert within_half_a_step(matrix, weight(), steps=0.52)
    assert matrix.values.nbytes == 6 * 100
    assert (matrix.zeros_OG is None) == symmetric


@pytest.mark.parametrize("group_size", GROUPS)
def test_fp8_keeps_three_bits_behind_the_leading_one(group_size: int) -> None:
    matrix = quantise_fp8(weight(), group_size)
    error = (dequantise(matrix) - weight()).abs()
    scales = matrix.scales_OG.repeat_interleave(group_size, 1)[:, :200]
    # Below 2^-6 of a scale e4m3 has fixed steps of 2^-9.
    assert (error <= torch.maximum(weight().abs() * 2**-4, scales * 2**-10) * 1.0001).all()


@pytest.mark.parametrize("quantise", [lambda w: quantise_int8(w, 64), lambda w: quantise_int4(w, 64, symmetric=False)])
def test_zeros_stay_zeros(quantise: Callable[[torch.Tensor], QuantisedMatrix]) -> None:
    assert torch.equal(dequantise(quantise(weight()))[2], torch.zeros(200))


@pytest.mark.parametrize("constant", [0.0, 0.3, -1.7])
def test_a_constant_group_stays_what_it_is(constant: float) -> None:
    rows = torch.full((2, 64), constant)
    rows[:, 40] *= 1 + 1e-5
    torch.testing.assert_close(dequantise(quantise_int4(rows, 32, symmetric=False)), rows, rtol=2**-10, atol=0)


def test_values_of_a_q4_1_file_come_through() -> None:
    """16 levels from the smallest of 32 weights on: rounding them again changes nothing but fp16 digits."""
    levels = torch.randint(16, (8, 6, 32), generator=torch.Generator().manual_seed(0))
    levels[:, :, 0], levels[:, :, 1] = 0, 15
    steps, lowest = randn(8, 6, 1).half().float().abs() + 0.1, randn(8, 6, 1, seed=1).half().float() * 3
    weight = (levels * steps + lowest).flatten(1)
    matrix = quantise_int4(weight, 32, symmetric=False)
    assert torch.equal(unpack_nibbles(matrix.values), levels.flatten(1).to(torch.uint8))
    torch.testing.assert_close(dequantise(matrix), weight, rtol=2**-9, atol=2**-9)


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 2**32))
def test_nibbles_survive_packing(half: int, rows: int, seed: int) -> None:
    values = torch.randint(16, (rows, 2 * half), generator=torch.Generator().manual_seed(seed))
    packed = pack_nibbles(values)
    assert packed.shape == (rows, half)
    assert torch.equal(unpack_nibbles(packed), values.to(torch.uint8))


def test_columns_come_back_in_the_order_of_inputs() -> None:
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    matrix = quantise_int8(weight()[:, order], 200)
    shuffled = QuantisedMatrix(matrix.values, matrix.scales_OG, 200, order_E=order)
    assert torch.equal(dequantise_in_order(shuffled), dequantise(quantise_int8(weight(), 200)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("group_size", [64, 200])
def test_no_scale_hides_what_is_not_a_number(bad: float, group_size: int) -> None:
    x = randn(3, 200)
    x[1, 70] = bad
    values, scales = round_int8(x, group_size)
    assert not scales[1].isfinite().all()
    assert scales[[0, 2]].isfinite().all()
    assert torch.equal(values[[0, 2]], round_int8(x[[0, 2]], group_size)[0])


@pytest.mark.parametrize("group_size", [2, 4])
def test_the_smallest_numbers_keep_their_signs(group_size: int) -> None:
    """Their scale is below the smallest normal number, so it is itself rounded, by up to half."""
    x = torch.tensor([[190.0, -190.0, 150.0, -130.0]]) * 2.0**-149
    values, scales = round_int8(x, group_size)
    assert (scales == 2.0**-149).all()
    assert values.tolist() == [[127, -127, 127, -127]]


def within_half_a_step(matrix: QuantisedMatrix, expected: torch.Tensor, steps: float = 0.5) -> bool:
    error = (dequantise(matrix) - expected).abs()
    scales = matrix.scales_OG.float().repeat_interleave(matrix.group_size, 1)[:, : expected.shape[1]]
    return bool((error <= scales * steps * 1.001 + 1e-9).all())
