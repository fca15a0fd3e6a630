"""Best first by the goal's direction; failed settings are listed; what cannot be compared is never ranked together."""

from pathlib import Path

import pandas as pd
import pytest
from sglk_reports.frames import tidy
from sglk_reports.metrics import goal
from sglk_reports.rankings import Ranking, rankings
from sglk_reports.sources import find_sources
from sglk_reports.study import Goal
from sglk_tuner import objective

from sglk.bench.record import CostRecord, GroupRecord
from sglk.config.bench_schema import SloConfig
from tests.reports.folders import CHUNK, WINDOW, record, study


def ranked(root: Path, *goals: Goal) -> list[Ranking]:
    sources = find_sources([], root)
    return rankings(tidy(sources), sources, goals)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("metric", ["output_throughput", "ttft_s_p99"])
def test_the_order_follows_the_direction(tmp_path: Path, metric: str, direction: str) -> None:
    study(tmp_path / "studies")
    (ranking,) = ranked(tmp_path, goal(f"{direction}:{metric}", [metric]))
    values = list(ranking.rows[metric])
    assert values == sorted(values, reverse=direction == "maximize")
    assert list(ranking.rows["rank"]) == [1, 2, 3, 4, 5, 6]


def test_without_other_wishes_the_study_ranks_by_its_own_rule(tmp_path: Path) -> None:
    study(tmp_path / "studies")
    (ranking,) = ranked(tmp_path)
    assert list(ranking.rows["rank"]) == list(ranking.rows["study_rank"])
    assert "Pareto front" in ranking.rule


def test_failed_trials_are_listed_last_and_without_rank(tmp_path: Path) -> None:
    study(tmp_path / "studies", failing={CHUNK: 1024, WINDOW: 8}, reason="killed")
    (ranking,) = ranked(tmp_path)
    last = ranking.rows.iloc[-1]
    assert len(ranking.rows) == 6
    assert (last["state"], last["reason"], last[WINDOW]) == ("FAIL", "killed", 8)
    assert pd.isna(last["rank"])
    assert list(ranking.rows["rank"].dropna()) == [1, 2, 3, 4, 5]


def test_the_change_is_counted_from_the_default_configuration(tmp_path: Path) -> None:
    study(tmp_path / "studies", goals=(objective.Goal("output_throughput", "maximize"),))
    (ranking,) = ranked(tmp_path)
    assert ranking.default is not None
    base = ranking.default["output_throughput"]
    for _, row in ranking.rows.iterrows():
        expected = (row["output_throughput"] - base) / base * 100
        assert row["delta:output_throughput"] == pytest.approx(expected)


def test_a_study_whose_default_failed_has_no_change_to_show(tmp_path: Path) -> None:
    study(tmp_path / "studies", failing={CHUNK: 512, WINDOW: 8})
    (ranking,) = ranked(tmp_path)
    assert ranking.default is None
    assert ranking.rows["delta:output_throughput"].isna().all()


def test_a_study_without_a_single_result_is_listed_and_has_no_best(tmp_path: Path) -> None:
    study(tmp_path / "studies")
    (ranking,) = ranked(tmp_path, Goal("goodput_under_no_slo", "maximize"))
    assert ranking.winner is None
    assert len(ranking.rows) == 6


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "simulated"},
        {"chip": "kunlun"},
        {"model": "qwen7b"},
        {"workload": {"input_len": 128}},
        {"cache": "keep"},
    ],
)
def test_runs_that_differ_in_what_was_measured_are_ranked_apart(tmp_path: Path, other: dict[str, str]) -> None:
    record("one").save(tmp_path / "runs/one.json")
    record("two", ttft_s=0.1).save(tmp_path / "runs/two.json")
    record("other", **other).save(tmp_path / "runs/other.json")  # type: ignore[arg-type]
    groups = sorted(sorted(ranking.rows["id"]) for ranking in ranked(tmp_path))
    assert groups == [["one", "two"], ["other"]]


def test_what_older_records_do_not_say_of_a_simulation_is_no_difference(tmp_path: Path) -> None:
    for name, figures in (("old", {}), ("new", {"peak": 1.0, "memory": 8.0}), ("faster", {"peak": 2.0, "memory": 8.0})):
        simulated = record(name, kind="simulated")
        cost = CostRecord("roofline", "cpu")
        simulated.simulated_groups = [
            GroupRecord("group0", "cpu", "m", 1.0, 1, 1, 12, 0.5, 99, 1, 9, 1, {}, cost, {}, {}, figures)
        ]
        simulated.save(tmp_path / f"runs/{name}.json")
    (ranking,) = ranked(tmp_path)
    assert ranking.knobs == ["chip.peak"]
    (tmp_path / "runs/faster.json").unlink()
    (ranking,) = ranked(tmp_path)
    assert ranking.knobs == []


def test_the_slo_separates_goodput_and_nothing_else(tmp_path: Path) -> None:
    record("loose", slo=SloConfig(ttft_s=9.0)).save(tmp_path / "runs/loose.json")
    record("tight", slo=SloConfig(ttft_s=0.1)).save(tmp_path / "runs/tight.json")
    assert len(ranked(tmp_path, Goal("goodput", "maximize"))) == 2
    assert len(ranked(tmp_path, Goal("output_throughput", "maximize"))) == 1


def test_simulated_trials_of_a_study_are_never_ranked_with_measured_ones(tmp_path: Path) -> None:
    folder = study(tmp_path / "studies")
    runtime = {"chunked_prefill_size": 1024, "max_running_requests": 4}
    record("simulated", ttft_s=0.001, tpot_s=0.001, kind="simulated", runtime=runtime).save(folder / "trials/003.json")
    measured, simulated = sorted(ranked(tmp_path), key=lambda ranking: ranking.kind)
    assert [measured.kind, simulated.kind] == ["measured", "simulated"]
    assert list(simulated.rows["id"]) == ["3"]
    assert set(measured.rows["kind"]) == {"measured"}
    assert set(measured.records) == {"0", "1", "2", "4", "5"}


def test_the_default_stays_the_winner_where_the_closing_comparison_says_so(tmp_path: Path) -> None:
    study(tmp_path / "studies", kept=0)
    (ranking,) = ranked(tmp_path)
    assert ranking.winner is not None
    assert (ranking.winner["id"], ranking.winner["is_default"]) == ("0", True)
    assert ranking.rows.iloc[0]["id"] != "0"


def test_another_metric_has_another_winner(tmp_path: Path) -> None:
    study(tmp_path / "studies", kept=0)
    (ranking,) = ranked(tmp_path, Goal("tpot_s_p50", "minimize"))
    assert ranking.winner is not None
    assert ranking.winner["tpot_s_p50"] == ranking.rows["tpot_s_p50"].min()


def test_an_invalid_run_is_shown_without_rank(tmp_path: Path) -> None:
    record("good").save(tmp_path / "runs/good.json")
    record("bad", ttft_s=0.001, tpot_s=0.001, failed=4).save(tmp_path / "runs/bad.json")
    (ranking,) = ranked(tmp_path)
    assert list(ranking.ranked["id"]) == ["good"]
    assert ranking.rows.iloc[-1]["state"] == "INVALID"
