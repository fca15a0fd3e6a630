"""The median figure per value of each parameter."""

import statistics
from pathlib import Path

import pytest
from sglk_reports.effects import effects, values_in_order
from sglk_reports.frames import tidy
from sglk_reports.plots import effect_plot
from sglk_reports.rankings import Ranking, rankings
from sglk_reports.sources import find_sources
from sglk_reports.study import Goal
from sglk_reports.tables import effect_table, ranking_table

from tests.reports.folders import CHUNK, WINDOW, record, study

LATENCY = Goal("ttft_s_p99", "minimize")


def ranking_of(root: Path) -> Ranking:
    sources = find_sources([], root)
    return rankings(tidy(sources), sources)[0]


def test_each_value_gets_the_median_and_the_best_of_its_settings(tmp_path: Path) -> None:
    study(tmp_path / "studies")
    ranking = ranking_of(tmp_path)
    table = effects(ranking, LATENCY)
    assert list(zip(table["knob"], table["value"], strict=True)) == [
        (CHUNK, 512),
        (CHUNK, 1024),
        (WINDOW, 4),
        (WINDOW, 8),
        (WINDOW, 16),
    ]
    for row in table.to_dict("records"):
        mine = ranking.rows.loc[ranking.rows[row["knob"]] == row["value"], LATENCY.metric]
        assert row["median"] == pytest.approx(statistics.median(mine))
        assert row["best"] == min(mine)
        assert row["settings"] == len(mine)


def test_failed_settings_are_counted_and_have_no_figure(tmp_path: Path) -> None:
    study(tmp_path / "studies", failing={CHUNK: 1024, WINDOW: 16})
    table = effects(ranking_of(tmp_path), LATENCY).set_index(["knob", "value"])
    assert table.loc[(WINDOW, 16), ["settings", "failed"]].tolist() == [1, 1]
    assert table.loc[(WINDOW, 4), ["settings", "failed"]].tolist() == [2, 0]


def test_null_is_a_value_and_an_unknown_one_is_none(tmp_path: Path) -> None:
    for name, runtime in {"free": None, "few": 600, "many": 2048}.items():
        record(name, runtime={"max_total_tokens": runtime}).save(tmp_path / f"runs/{name}.json")
    silent = record("silent")
    silent.runtime = None
    silent.save(tmp_path / "runs/silent.json")
    ranking = ranking_of(tmp_path)
    tokens = "runtime.max_total_tokens"
    rows = [row for row in effects(ranking, LATENCY).to_dict("records") if row["knob"] == tokens]
    assert [(row["value"], row["settings"]) for row in rows] == [(600, 1), (2048, 1), (None, 1)]
    texts = [row[:2] for row in effect_table(ranking, LATENCY).rows]
    assert texts[:3] == [["max_total_tokens", "600"], ["max_total_tokens", "2048"], ["max_total_tokens", "null"]]
    table = ranking_table(ranking)
    place = table.headers.index("max_total_tokens")
    assert sorted(row[place] for row in table.rows) == ["-", "2048", "600", "null"]
    drawn = effect_plot(ranking, LATENCY)
    assert drawn is not None
    assert sorted(drawn.data[0].x) == ["2048", "600", "null"]
    assert list(drawn.data[1].x) == ["600", "2048", "null"]


def test_values_stand_in_the_order_of_their_size() -> None:
    assert values_in_order([4096, "lpm", 512, 0.8, "fcfs", 512]) == [0.8, 512, 4096, "fcfs", "lpm"]
