from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.fidelity_page import page
from benchmarks.fidelity_score import (
    METRICS,
    Point,
    errors,
    interval,
    middle,
    order,
    paired_noise,
    rank_correlation,
    regrets,
    spread,
)

TTFT, THROUGHPUT = "ttft_s_p50", "output_throughput"
DRIFT = (1.0, 1.3, 0.9, 1.1, 1.2)
"""How much longer everything took in each pass."""


def point(
    setting: str,
    measured: float | Sequence[float] | None,
    predicted: float | Sequence[float] | None,
    cell: str = "c",
    metric: str = TTFT,
) -> Point:
    """One figure stands for that of five passes of a machine that drifts, several for those of the passes."""
    passes = measured if isinstance(measured, Sequence) else [measured and measured * slower for slower in DRIFT]
    calibrations = predicted if isinstance(predicted, Sequence) else [predicted]
    others = dict.fromkeys(METRICS, 1.0)
    runs, predictions = ([{**others, metric: value} for value in values] for values in (passes, calibrations))
    return Point("m", cell, setting, False, False, runs, predictions)


def test_errors_are_shares_of_the_median_measurement() -> None:
    points = [point("a", 2.0, 1.1), point("b", 1.0, 1.21), point("c", None, 1.0), point("d", 1.0, 9.9)]
    assert errors(points, TTFT) == pytest.approx([0.5, 0.1, 8.0])
    assert spread([0.5, 0.1, 8.0]).median == 0.5


def test_the_median_of_predictions_counts_and_how_far_they_are_apart_is_told() -> None:
    found = point("a", [4.0], [1.0, 2.0, 9.0])
    assert found.error(TTFT) == pytest.approx(0.5)
    assert found.drift(TTFT) == pytest.approx([0.5, 0.0, 3.5])


def test_the_error_at_the_pace_of_the_machine_is_told_beside() -> None:
    found = replace(point("a", 2.0, 1.1), paced_predictions=[{**dict.fromkeys(METRICS, 1.0), TTFT: 2.2}])
    assert errors([found], TTFT) == pytest.approx([0.5])
    assert errors([found], TTFT, at_pace=True) == pytest.approx([0.0])


def test_the_middle_of_several_figures_is_that_of_each() -> None:
    figures = [{**dict.fromkeys(METRICS, value), TTFT: 1 / value} for value in (1.0, 2.0, 4.0)]
    assert middle(figures) == {**dict.fromkeys(METRICS, 2.0), TTFT: 0.5}
    assert middle([*figures, {**figures[0], TTFT: None}])[TTFT] is None


def test_the_median_of_the_runs_counts_and_how_far_they_are_from_it_is_said() -> None:
    found = point("a", [1.0, 1.2, 1.8], 1.1)
    assert found.measured(TTFT) == pytest.approx(1.2)
    assert found.noise(TTFT) == pytest.approx([1 / 6, 0, 0.5])
    assert point("a", None, 1.1).measured(TTFT) is None


def test_a_slower_pass_makes_no_difference_between_its_settings() -> None:
    near, far = point("a", 1.0, 1.0), point("b", 1.05, 1.0)
    assert order(near, far, TTFT) == -1
    assert order(far, near, TTFT) == 1
    assert paired_noise([near, far], TTFT) == pytest.approx([0.0] * 10)
    assert max(near.noise(TTFT)) > 0.1


def test_settings_are_a_tie_where_passes_disagree_or_the_difference_is_nothing() -> None:
    one = point("a", [1.0, 1.0, 1.0, 1.0, 1.0], 1.0)
    assert order(one, point("b", [1.1, 1.2, 1.3, 1.4, 0.9], 1.0), TTFT) == 0
    assert order(one, point("b", [1.1, 1.2, 1.3, 1.4, 1.01], 1.0), TTFT) == -1
    assert order(one, point("b", [1.001, 1.002, 1.003, 1.5, 1.6], 1.0), TTFT) == 0


def test_the_interval_of_a_median_needs_no_distribution() -> None:
    assert interval([1.0, 2.0]) == (1.0, 2.0)
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]) == (1.0, 5.0)
    assert interval([float(value) for value in range(1, 9)]) == (2.0, 7.0)
    assert interval([7.0]) == (7.0, 7.0)


def test_ranks_are_compared_within_a_cell_alone() -> None:
    agreeing = [point("a", 1.0, 10.0), point("b", 2.0, 20.0), point("x", 0.1, 90.0, cell="other")]
    found = rank_correlation(agreeing, TTFT)
    assert found is not None
    assert (found.tau_b, found.pairs, found.ties) == (1.0, 1, 0)
    contrary = rank_correlation([*agreeing, point("d", 3.0, 5.0)], TTFT)
    assert contrary is not None
    assert contrary.tau_b == pytest.approx(-1 / 3)
    assert contrary.pairs == 3
    assert rank_correlation(agreeing[:1], TTFT) is None


def test_ties_count_as_kendall_has_them() -> None:
    # Of 3 pairs measurements tell 2 apart and predictions 3: (2 - 0)/sqrt(2 x 3).
    points = [point("a", 1.0, 1.0), point("b", 1.0, 2.0), point("c", 2.0, 3.0)]
    found = rank_correlation(points, TTFT)
    assert found is not None
    assert found.tau_b == pytest.approx(2 / 6**0.5)
    assert (found.pairs, found.ties) == (3, 1)
    apart = rank_correlation(points, TTFT, told_apart=True)
    assert apart is not None
    assert (apart.tau_b, apart.pairs, apart.ties) == (1.0, 2, 1)
    # Predicted alike where measurements differ is a miss in part, and alike on both sides none.
    both = rank_correlation([point("a", 1.0, 1.0), point("b", 1.0, 1.005), point("c", 2.0, 1.0)], TTFT)
    assert both is None
    half = rank_correlation([point("a", 1.0, 1.0), point("b", 1.5, 1.005), point("c", 2.0, 3.0)], TTFT)
    assert half is not None
    assert half.tau_b == pytest.approx(2 / 6**0.5)


def test_predictions_are_compared_within_a_calibration() -> None:
    points = [point("a", 1.0, [1.0, 1.3, 0.9]), point("b", 1.1, [1.05, 1.37, 0.95])]
    found = rank_correlation(points, TTFT)
    assert found is not None
    assert found.tau_b == 1.0


def test_regret_is_what_the_predicted_choice_costs() -> None:
    points = [point("a", 1.0, 3.0), point("b", 1.5, 2.0), point("c", 4.0, 9.0)]
    assert regrets(points, TTFT) == pytest.approx([0.5])
    assert regrets([*points, point("a", 1.0, 1.0, cell="alone")], TTFT) == pytest.approx([0.5])
    assert regrets([point("a", 1.0, 1.0), point("b", 1.5, 2.0)], TTFT) == [0.0]


def test_the_choice_is_that_of_predictions_by_the_same_calibrations() -> None:
    points = [point("a", 1.0, [1.0, 1.5, 2.0]), point("b", 1.2, [1.1, 1.4, 2.2])]
    assert regrets(points, TTFT) == [0.0]


def test_throughput_is_better_when_it_is_higher() -> None:
    points = [point("a", 8.0, 12.0, metric=THROUGHPUT), point("b", 10.0, 11.0, metric=THROUGHPUT)]
    assert regrets(points, THROUGHPUT) == pytest.approx([0.2])


def test_a_choice_that_runs_do_not_tell_from_the_best_has_no_sure_regret() -> None:
    points = [point("a", [1.0] * 5, 2.0), point("b", [1.1, 1.2, 1.05, 1.03, 0.9], 1.0)]
    assert regrets(points, TTFT) == pytest.approx([0.05])
    assert regrets(points, TTFT, told_apart=True) == [0.0]


def test_the_page_has_the_scores_with_their_bars_and_every_point() -> None:
    rows = [
        {"metric": "ttft_s_p50: median error of 2 points", "value": 0.051, "unit": "", "against": "bar, at most",
         "other_value": 0.12, "ratio": 0.4},
        {"metric": "m | light | base | ttft_s_p50", "value": 0.11, "unit": "s", "against": "measured",
         "other_value": 0.1, "ratio": 1.1},
        {"metric": "m | light | base | ttft_s_p50 | run 1", "value": 0.09, "unit": "s", "against": None},
        {"metric": "m | light | base | ttft_s_p50 | run 2", "value": 0.11, "unit": "s", "against": None},
    ]  # fmt: skip
    machine = {"cpu": "a processor", "cores": 2}
    result = {
        "rows": rows,
        "machine": machine,
        "date": "2026-11-29T21:00:00",
        "command": "python -m benchmarks.fidelity",
    }
    text = page({**result, "versions": {"sglk": "1", "torch": "2"}})
    assert "| ttft_s_p50: median error of 2 points | 5.1% | at most 12.0% |" in text
    assert "| m | light | base | 110 / 100 (90 to 110) +10% |" in text
    assert "2026-11-29, a processor, 2 cores" in text
    assert "python -m benchmarks.fidelity" in text
