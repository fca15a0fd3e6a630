"""A drawn token depends on its own row alone, and follows the distribution that was asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.engine.batch import BatchRow
from sglk.engine.messages import SamplingParams
from sglk.engine.sampler import NOT_FINITE, Sampler, uniforms

VOCABULARY = 2000


def sampler(vocabulary: int = VOCABULARY) -> Sampler:
    return Sampler(CpuBackend(num_threads=1), torch.float32, vocabulary)


def row(seed: int = 0, num_generated: int = 0, request_id: str = "r", **params: Any) -> BatchRow:
    sampling = SamplingParams(**params)
    return BatchRow(request_id, [0], 0, [0], sampling, seed, num_generated, True)


def logits(rows: int, vocabulary: int = VOCABULARY, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def draws(weights: Sequence[float], count: int, **params: Any) -> list[float]:
    """Return the share of each id among `count` draws from softmax(log(weights))."""
    row_logits = torch.tensor([weights]).log().expand(count, -1)
    tokens = sampler(len(weights))(row_logits, [row(seed=7, num_generated=step, **params) for step in range(count)])
    shares: list[float] = (np.bincount(tokens, minlength=len(weights)) / count).tolist()
    return shares


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-4])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    batch = logits(5)
    assert sampler()(batch, [row(temperature=temperature)] * 5) == batch.argmax(-1).tolist()


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-9}])
def test_one_candidate_is_greedy(params: dict[str, Any]) -> None:
    batch = logits(5)
    assert sampler()(batch, [row(seed=seed, temperature=2.0, **params) for seed in range(5)]) == (
        batch.argmax(-1).tolist()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_each_row_equals_that_row_alone(dtype: torch.dtype) -> None:
    rows = [
        row(seed=seed, num_generated=seed, temperature=temperature, top_p=top_p, top_k=top_k)
        for seed, (temperature, top_p, top_k) in enumerate(
            (temperature, top_p, top_k)
            for temperature in (0.0, 1e-9, 1e-4, 1.1e-4, 1.0, 2.0)
            for top_p in (1e-9, 0.5, 1.0)
            for top_k in (-1, 1, 40, 10**6)
        )
    ]
    batch = logits(len(rows)).to(dtype)
    batch[:, ::3] = -torch.inf
    sample = sampler()
    together = sample(batch, rows)
    assert together == [sample(batch[index : index + 1], [one])[0] for index, one in enumerate(rows)]
    assert all(token % 3 for token in together)


def test_the_draw_is_fixed_by_seed_and_place() -> None:
    batch = logits(1).expand(40, -1)
    same = sampler()(batch, [row(seed=3, num_generated=9)] * 40)
    assert len(set(same)) == 1
    by_place = sampler()(batch, [row(seed=3, num_generated=place) for place in range(40)])
    by_seed = sampler()(batch, [row(seed=seed, num_generated=9) for seed in range(40)])
    assert len(set(by_place)) > 5
    assert len(set(by_seed)) > 5


def test_frequencies_follow_the_distribution() -> None:
    assert draws([0.5, 0.3, 0.0, 0.2], 20_000) == pytest.approx([0.5, 0.3, 0.0, 0.2], abs=0.015)


def test_temperature_sharpens_and_flattens() -> None:
    weights = np.array([0.5, 0.3, 0.2])
    for temperature in (0.5, 2.0):
        expected = weights ** (1 / temperature)
        expected /= expected.sum()
        assert draws(weights.tolist(), 20_000, temperature=temperature) == pytest.approx(expected.tolist(), abs=0.015)


def test_top_k_keeps_the_likeliest() -> None:
    assert draws([0.1, 0.4, 0.2, 0.3], 20_000, top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=0.015)


def test_top_p_keeps_the_id_that_crosses_the_mass() -> None:
    assert draws([0.1, 0.4, 0.2, 0.3], 20_000, top_p=0.6) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=0.015)


def test_top_p_counts_within_top_k() -> None:
    # Of the two that top_k keeps, the first alone holds 4/7 of the mass.
    assert draws([0.1, 0.4, 0.2, 0.3], 500, top_k=2, top_p=0.5) == [0, 1, 0, 0]


def test_a_large_vocabulary_is_cut_like_a_small_one() -> None:
    weights = [0.0] * 3000
    weights[17], weights[2500], weights[2999] = 0.5, 0.3, 0.2
    shares = draws(weights, 5000, top_p=0.7)
    assert [shares[17], shares[2500], shares[2999]] == pytest.approx([5 / 8, 3 / 8, 0], abs=0.03)
    assert shares[2999] == 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_fail_their_row_alone(poison: float, temperature: float) -> None:
    batch = logits(3)
    rows = [row(seed=seed, temperature=temperature) for seed in range(3)]
    good = sampler()(batch, rows)
    batch[1, 5] = poison

    assert sampler()(batch, rows) == [good[0], NOT_FINITE, good[2]]


def test_a_row_without_any_possible_token_fails() -> None:
    assert sampler()(torch.full((1, VOCABULARY), -torch.inf), [row()]) == [NOT_FINITE]


def test_uniforms_are_uniform_and_take_any_integer_as_seed() -> None:
    numbers = np.concatenate([uniforms([seed] * 1000, range(1000)) for seed in (0, 1, -1, 2**64 - 1, 2**70, 12345)])
    assert numbers.dtype == np.float32
    assert 0 <= numbers.min() < 0.01
    assert 0.99 < numbers.max() < 1
    assert np.histogram(numbers, bins=10, range=(0, 1))[0] == pytest.approx([600] * 10, abs=100)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05
