"""Chips stand side by side only where they met the same traffic."""

from pathlib import Path

from sglk_reports.comparison import Comparison, compare_chips
from sglk_reports.frames import tidy
from sglk_reports.sources import find_sources
from sglk_reports.study import Goal

from tests.reports.folders import record

THROUGHPUT = Goal("output_throughput", "maximize")
LATENCY = Goal("ttft_s_p99", "minimize")


def compared(root: Path, goal: Goal = THROUGHPUT) -> Comparison:
    return compare_chips(tidy(find_sources([], root)), [goal])


def test_the_best_setting_of_each_chip_is_compared(tmp_path: Path) -> None:
    record("slow", chip="cpu", tpot_s=0.04).save(tmp_path / "runs/1.json")
    record("fast", chip="cpu", tpot_s=0.02).save(tmp_path / "runs/2.json")
    record("card", chip="kunlun", tpot_s=0.01).save(tmp_path / "runs/3.json")
    rows = compared(tmp_path).rows
    assert list(rows["id"]) == ["card", "fast"]
    assert rows["share:output_throughput"].iloc[0] == 100
    assert 0 < rows["share:output_throughput"].iloc[1] < 100


def test_lower_is_better_for_a_latency(tmp_path: Path) -> None:
    record("one", chip="cpu", ttft_s=0.1).save(tmp_path / "runs/1.json")
    record("two", chip="kunlun", ttft_s=0.2).save(tmp_path / "runs/2.json")
    assert list(compared(tmp_path, LATENCY).rows["id"]) == ["one", "two"]


def test_other_workloads_of_the_same_name_are_not_compared_and_that_is_said(tmp_path: Path) -> None:
    record("one", chip="cpu").save(tmp_path / "runs/1.json")
    record("two", chip="kunlun", workload={"input_len": 999}).save(tmp_path / "runs/2.json")
    found = compared(tmp_path)
    assert found.rows.empty
    assert "other hash" in found.notes[0]


def test_simulated_is_not_compared_with_measured(tmp_path: Path) -> None:
    record("one", chip="cpu").save(tmp_path / "runs/1.json")
    record("two", chip="kunlun", kind="simulated").save(tmp_path / "runs/2.json")
    found = compared(tmp_path)
    assert found.rows.empty
    assert "simulated" in found.notes[0]


def test_a_chip_alone_is_no_comparison(tmp_path: Path) -> None:
    record("one").save(tmp_path / "runs/1.json")
    record("two", tpot_s=0.01).save(tmp_path / "runs/2.json")
    found = compared(tmp_path)
    assert found.rows.empty
    assert found.notes == []


def test_failed_runs_do_not_represent_their_chip(tmp_path: Path) -> None:
    record("one", chip="cpu").save(tmp_path / "runs/1.json")
    record("good", chip="kunlun", tpot_s=0.05).save(tmp_path / "runs/2.json")
    record("bad", chip="kunlun", tpot_s=0.001, failed=6).save(tmp_path / "runs/3.json")
    assert sorted(compared(tmp_path).rows["id"]) == ["good", "one"]
