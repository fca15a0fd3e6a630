import pytest

from benchmarks.fidelity_page import page
from benchmarks.fidelity_score import METRICS, Point, errors, rank_correlation, regrets, spread


def point(
    setting: str,
    measured: float | None,
    predicted: float | None,
    cell: str = "c",
    saturated: bool = False,
    metric: str = "ttft_s_p50",
    again: float | None = None,
) -> Point:
    """Measured twice alike, or with `again` as the second figure."""
    others = dict.fromkeys(METRICS, 1.0)
    runs = [{**others, metric: value} for value in (measured, measured if again is None else again)]
    return Point("m", cell, setting, saturated, runs, [{**others, metric: predicted}])


def test_errors_are_shares_of_the_measurement() -> None:
    points = [point("a", 2.0, 1.0), point("b", 1.0, 1.1), point("c", None, 1.0), point("d", 1.0, 9.0, saturated=True)]
    assert errors(points, "ttft_s_p50", saturated=False) == pytest.approx([0.5, 0.1])
    assert errors(points, "ttft_s_p50") == pytest.approx([0.5, 0.1, 8.0])
    assert spread([0.5, 0.1, 8.0]).median == 0.5


def test_the_median_of_predictions_counts_and_how_far_they_are_apart_is_told() -> None:
    predictions = [{**dict.fromkeys(METRICS, 1.0), "ttft_s_p50": value} for value in (1.0, 2.0, 9.0)]
    found = Point("m", "c", "a", False, point("a", 4.0, None).runs, predictions)
    assert found.error("ttft_s_p50") == pytest.approx(0.5)
    assert found.drift("ttft_s_p50") == pytest.approx([0.5, 0.0, 3.5])


def test_ranks_are_compared_within_a_cell_alone() -> None:
    agreeing = [point("a", 1.0, 10.0), point("b", 2.0, 20.0), point("x", 0.1, 90.0, cell="other")]
    assert rank_correlation(agreeing, "ttft_s_p50") == (1.0, 1)
    contrary = [*agreeing, point("d", 3.0, 5.0)]
    assert rank_correlation(contrary, "ttft_s_p50") == pytest.approx((-1 / 3, 3))


def test_settings_that_runs_order_differently_have_no_rank_and_no_regret() -> None:
    points = [point("a", 1.0, 2.0, again=1.2), point("b", 1.04, 1.0, again=1.3)]
    assert rank_correlation(points, "ttft_s_p50", told_apart=True) == (-1.0, 1)
    assert regrets(points, "ttft_s_p50", told_apart=True) == pytest.approx([0.07 / 1.1])
    points = [point("a", 1.0, 2.0, again=1.2), point("b", 1.04, 1.0, again=1.17)]
    assert rank_correlation(points, "ttft_s_p50") == (-1.0, 1)
    assert rank_correlation(points, "ttft_s_p50", told_apart=True) is None
    assert regrets(points, "ttft_s_p50") == pytest.approx([0.005 / 1.1])
    assert regrets(points, "ttft_s_p50", told_apart=True) == [0.0]


def test_the_median_of_the_runs_counts_and_how_far_they_are_from_it_is_said() -> None:
    found = point("a", 1.0, 1.1, again=1.4)
    assert found.measured("ttft_s_p50") == pytest.approx(1.2)
    assert found.noise("ttft_s_p50") == pytest.approx([1 / 6, 1 / 6])
    assert point("a", None, 1.1).measured("ttft_s_p50") is None


def test_regret_is_what_the_predicted_choice_costs() -> None:
    points = [point("a", 1.0, 3.0), point("b", 1.5, 2.0), point("c", 4.0, 9.0)]
    assert regrets(points, "ttft_s_p50") == pytest.approx([0.5])
    assert regrets([*points, point("a", 1.0, 1.0, cell="alone")], "ttft_s_p50") == pytest.approx([0.5])


def test_throughput_is_better_when_it_is_higher() -> None:
    points = [point("a", 8.0, 12.0, metric="output_throughput"), point("b", 10.0, 11.0, metric="output_throughput")]
    assert regrets(points, "output_throughput") == pytest.approx([0.2])


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
