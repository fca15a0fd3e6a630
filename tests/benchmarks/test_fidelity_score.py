import pytest

from benchmarks.fidelity_page import page
from benchmarks.fidelity_score import METRICS, Point, errors, rank_correlation, regrets, spread


def point(
    setting: str, measured: float | None, predicted: float | None, cell: str = "c", saturated: bool = False
) -> Point:
    others = dict.fromkeys(METRICS, 1.0)
    return Point("m", cell, setting, saturated, {**others, "ttft_s_p50": measured}, {**others, "ttft_s_p50": predicted})


def test_errors_are_shares_of_the_measurement() -> None:
    points = [point("a", 2.0, 1.0), point("b", 1.0, 1.1), point("c", None, 1.0), point("d", 1.0, 9.0, saturated=True)]
    assert errors(points, "ttft_s_p50", saturated=False) == pytest.approx([0.5, 0.1])
    assert errors(points, "ttft_s_p50") == pytest.approx([0.5, 0.1, 8.0])
    assert spread([0.5, 0.1, 8.0]).median == 0.5


def test_ranks_are_compared_within_a_cell_alone() -> None:
    agreeing = [point("a", 1.0, 10.0), point("b", 2.0, 20.0), point("x", 0.1, 90.0, cell="other")]
    assert rank_correlation(agreeing, "ttft_s_p50") == 1.0
    contrary = [*agreeing, point("d", 3.0, 5.0)]
    assert rank_correlation(contrary, "ttft_s_p50") == pytest.approx(-1 / 3)


def test_settings_that_do_not_differ_have_no_rank() -> None:
    points = [point("a", 1.0, 2.0), point("b", 1.04, 1.0)]
    assert rank_correlation(points, "ttft_s_p50") == -1.0
    assert rank_correlation(points, "ttft_s_p50", tie=0.05) is None


def test_regret_is_what_the_predicted_choice_costs() -> None:
    points = [point("a", 1.0, 3.0), point("b", 1.5, 2.0), point("c", 4.0, 9.0)]
    assert regrets(points, "ttft_s_p50") == pytest.approx([0.5])
    assert regrets([*points, point("a", 1.0, 1.0, cell="alone")], "ttft_s_p50") == pytest.approx([0.5])


def test_throughput_is_better_when_it_is_higher() -> None:
    def with_rate(setting: str, measured: float, predicted: float) -> Point:
        others = dict.fromkeys(METRICS, 1.0)
        return Point(
            "m",
            "c",
            setting,
            False,
            {**others, "output_throughput": measured},
            {**others, "output_throughput": predicted},
        )

    assert regrets([with_rate("a", 8.0, 12.0), with_rate("b", 10.0, 11.0)], "output_throughput") == pytest.approx([0.2])


def test_the_page_has_the_scores_with_their_bars_and_every_point() -> None:
    rows = [
        {"metric": "ttft_s_p50: median error of 2 points", "value": 0.051, "unit": "", "against": "bar, at most",
         "other_value": 0.12, "ratio": 0.4},
        {"metric": "m | light | base | ttft_s_p50", "value": 0.11, "unit": "s", "against": "measured",
         "other_value": 0.1, "ratio": 1.1},
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
    assert "| m | light | base | 110 / 100 (+10%) |" in text
    assert "2026-11-29, a processor, 2 cores" in text
    assert "python -m benchmarks.fidelity" in text
