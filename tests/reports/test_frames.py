"""One row per trial and run, and a CSV that gives the same frame back."""

import io
from dataclasses import replace
from pathlib import Path

import pandas as pd
from sglk_reports.frames import FACTS, metrics, parameters, tidy
from sglk_reports.sources import find_sources

from tests.reports.folders import CHUNK, WINDOW, record, study


def frame_of(root: Path) -> pd.DataFrame:
    return tidy(find_sources([], root))


def test_every_trial_and_run_is_a_row(tmp_path: Path) -> None:
    study(tmp_path / "studies", failing={CHUNK: 1024, WINDOW: 4})
    record("one").save(tmp_path / "runs/one.json")
    frame = frame_of(tmp_path)
    assert list(frame["role"]) == ["trial"] * 6 + ["run"]
    assert set(frame["state"]) == {"COMPLETE", "FAIL"}
    assert set(parameters(frame)) == {CHUNK, WINDOW, "runtime.schedule_policy"}
    assert {"output_throughput", "ttft_s_p99"} <= set(metrics(frame))


def test_a_failed_trial_keeps_its_parameters_and_reason_but_has_no_figures(tmp_path: Path) -> None:
    study(tmp_path / "studies", failing={CHUNK: 1024, WINDOW: 4}, reason="out of memory")
    failed = frame_of(tmp_path).query("state == 'FAIL'").iloc[0]
    assert (failed[CHUNK], failed[WINDOW], failed["reason"]) == (1024, 4, "out of memory")
    assert failed[["output_throughput", "ttft_s_p99"]].isna().all()


def test_a_run_with_too_many_failures_is_invalid_and_says_why(tmp_path: Path) -> None:
    record("bad", failed=3).save(tmp_path / "runs/bad.json")
    row = frame_of(tmp_path).iloc[0]
    assert row["state"] == "INVALID"
    assert "3 of 12" in row["reason"]


def test_a_run_that_was_broken_off_is_invalid_and_says_why(tmp_path: Path) -> None:
    broken = replace(record("cut"), broken_off="interrupted, with 12 of 64 requests answered", valid=False)
    broken.save(tmp_path / "runs/cut.json")
    row = frame_of(tmp_path).iloc[0]
    assert (row["state"], row["reason"]) == ("INVALID", "interrupted, with 12 of 64 requests answered")


def test_figures_are_those_of_the_record(tmp_path: Path) -> None:
    run = record("one", ttft_s=0.25)
    run.save(tmp_path / "runs/one.json")
    row = frame_of(tmp_path).iloc[0]
    assert {name: row[name] for name in run.summary} == run.summary


def test_flushed_and_salted_runs_are_cold_and_kept_ones_are_not(tmp_path: Path) -> None:
    for cache in ("flush", "salt", "keep"):
        record(cache, cache=cache).save(tmp_path / f"runs/{cache}.json")
    frame = frame_of(tmp_path).set_index("id")
    assert frame["prefix_cache"].to_dict() == {"flush": "cold", "salt": "cold", "keep": "kept"}


def test_csv_gives_the_frame_back(tmp_path: Path) -> None:
    study(tmp_path / "studies", failing={CHUNK: 1024, WINDOW: 4}, reason='odd, "quoted"\nreason')
    record("one").save(tmp_path / "runs/one.json")
    frame = frame_of(tmp_path)
    again = pd.read_csv(io.StringIO(frame.to_csv(index=False)), dtype=dict.fromkeys(FACTS, object))
    assert list(again.columns) == list(frame.columns)
    for name in FACTS:
        before, after = frame[name].fillna("").astype(str), again[name].fillna("").astype(str)
        assert list(after.str.removesuffix(".0")) == list(before.str.removesuffix(".0"))
    for name in [CHUNK, WINDOW, *metrics(frame)]:
        pd.testing.assert_series_equal(again[name].astype(float), frame[name].astype(float))


def test_a_figure_or_parameter_called_like_a_fact_hides_no_fact(tmp_path: Path) -> None:
    odd = record("odd")
    odd.summary |= {"chip": 1.0, "runtime.page_size": 2.0}
    odd.save(tmp_path / "runs/odd.json")
    frame = frame_of(tmp_path)
    assert list(frame["chip"]) == ["cpu"]
    assert frame.columns.is_unique
