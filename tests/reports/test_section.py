"""What a reader takes away at first sight is what the figures say."""

from pathlib import Path

from sglk_reports.report import build_report
from sglk_reports.section import Section
from sglk_reports.sources import find_sources

from tests.reports.folders import CHUNK, WINDOW, record, study


def section_of(root: Path) -> Section:
    (section,) = build_report(find_sources([], root)).sections
    return section


def test_the_headline_names_the_winner_and_its_change(tmp_path: Path) -> None:
    study(tmp_path / "studies")
    section = section_of(tmp_path)
    assert section.headline.startswith("Best of 6 settings: chunked_prefill_size=1024, max_running_requests=4")
    assert [choice.default for choice in section.choices] == ["512", "8"]
    throughput, latency = section.tiles
    assert throughput.change.startswith("+")
    assert latency.change.startswith("-")
    assert throughput.better
    assert latency.better


def test_a_default_that_stays_is_said_to_stay(tmp_path: Path) -> None:
    study(tmp_path / "studies", kept=0)
    section = section_of(tmp_path)
    assert section.headline.startswith("The default configuration stays the choice of 6 settings")
    assert "beyond noise" in section.remarks[0]
    assert all(tile.change == "" for tile in section.tiles)


def test_request_times_come_from_the_closing_comparison(tmp_path: Path) -> None:
    study(tmp_path / "studies", kept=0)
    times = section_of(tmp_path).charts[-1].figure
    assert {trace.name for trace in times.data} == {"rank 1, trial 3", "default, trial 0"}
    assert {min(trace.x) for trace in times.data if trace.xaxis == "x"} == {123}


def test_runs_without_a_default_are_drawn_side_by_side(tmp_path: Path) -> None:
    for number in range(5):
        run = record(str(number), ttft_s=0.1 + number / 10, runtime={"page_size": 2**number})
        run.save(tmp_path / f"runs/{number}.json")
    section = section_of(tmp_path)
    assert {trace.name for trace in section.charts[-1].figure.data} == {"rank 1", "rank 2", "rank 3"}
    assert section.headline.startswith("Best of 5 settings: page_size=1,")


def test_a_study_that_still_runs_says_so(tmp_path: Path) -> None:
    folder = study(tmp_path / "studies", failing={CHUNK: 1024, WINDOW: 4})
    path = folder / "summary.json"
    path.write_text(path.read_text().replace('"status": "finished"', '"status": "running"'))
    section = section_of(tmp_path)
    assert section.warnings == ["the study is running: 5 complete, 1 fail"]


def test_a_study_in_which_all_failed_still_has_its_table(tmp_path: Path) -> None:
    folder = study(tmp_path / "studies")
    path = folder / "summary.json"
    path.write_text(path.read_text().replace('"state": "COMPLETE"', '"state": "FAIL"'))
    section = section_of(tmp_path)
    assert section.headline == "No setting could be ranked; 6 were tried."
    assert len(section.table.rows) == 6
    assert section.charts == []
    assert section.tiles == []
