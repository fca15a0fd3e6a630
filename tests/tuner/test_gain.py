import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglk_tuner.gain import Comparison, compare

from tests.tuner.studies import FASTER, SOONER


def throughput(*values: float) -> list[dict[str, float]]:
    return [{"output_throughput": value} for value in values]


def compared(default: list[float], other: list[float]) -> Comparison:
    return compare([FASTER], throughput(*default), throughput(*other))


def test_the_trial_that_chose_the_setting_does_not_count_for_the_ratio() -> None:
    gain = compared([100, 100, 100], [900, 110, 110]).gains["output_throughput"]
    assert gain.ratio == pytest.approx(1.1)
    assert gain.pairs == 2


def test_a_steady_difference_is_beyond_noise_and_a_shaky_one_is_not() -> None:
    assert compared([100, 100, 101, 99], [120, 119, 121, 120]).beyond_noise is True
    assert compared([100, 100, 140, 80], [120, 130, 90, 125]).beyond_noise is False


def test_one_pair_is_as_noisy_as_its_repeats() -> None:
    steady = compared([100, 101], [120, 119]).gains["output_throughput"]
    assert steady.low is not None
    assert steady.low > 1.1
    assert compared([100, 130], [120, 132]).beyond_noise is False


def test_smaller_latency_is_a_gain_above_one() -> None:
    default, other = [{"ttft_s_p99": 2.0}] * 3, [{"ttft_s_p99": 1.0}] * 3
    comparison = compare([SOONER], default, other)
    assert comparison.gains["ttft_s_p99"].ratio == pytest.approx(2.0)
    assert comparison.beyond_noise is True


def test_several_goals_are_judged_by_their_product() -> None:
    default = [{"output_throughput": 100.0, "ttft_s_p99": 1.0}] * 3
    traded = [{"output_throughput": 150.0, "ttft_s_p99": 3.0}] * 3
    comparison = compare([FASTER, SOONER], default, traded)
    assert comparison.gains["output_throughput"].ratio == pytest.approx(1.5)
    assert comparison.beyond_noise is False


def test_without_repeats_or_with_zeros_nothing_is_claimed() -> None:
    assert compared([100], [200]).beyond_noise is None
    zero = compared([0, 0, 0], [5, 5, 5])
    assert zero.beyond_noise is None
    assert zero.gains["output_throughput"].ratio is None


def test_a_setting_that_falls_to_nothing_is_no_winner() -> None:
    assert compared([1, 2, 2], [3, 0, 0]).beyond_noise is False
    assert compared([1, 2, 0], [3, 0, 4]).beyond_noise is False
    assert compare([SOONER], [{"ttft_s_p99": 0.0}] * 2, [{"ttft_s_p99": 1.0}] * 2).beyond_noise is False
    # Better in one goal by as much as it is worse in the other.
    default, other = {"output_throughput": 0.0, "ttft_s_p99": 0.0}, {"output_throughput": 1.0, "ttft_s_p99": 1.0}
    assert compare([FASTER, SOONER], [default] * 2, [other] * 2).beyond_noise is False


@given(st.lists(st.floats(1.0, 1e3), min_size=3, max_size=12))
def test_a_setting_does_not_beat_itself(values: list[float]) -> None:
    assert compared(values, values).beyond_noise is False
