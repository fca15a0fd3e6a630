"""Everything readable is read; what is damaged is named and left out, what is absent is an error with a way on."""

import json
from pathlib import Path

import pytest
from sglk_reports.sources import find_sources

from sglk.errors import ConfigError, RunError
from tests.reports.folders import record, study


def test_studies_and_runs_of_the_folder_are_read_by_default(tmp_path: Path) -> None:
    study(tmp_path / "studies")
    record("one").save(tmp_path / "runs/one.json")
    sources = find_sources([], tmp_path)
    assert [len(sources.studies), len(sources.runs), sources.skipped] == [1, 1, []]
    assert sorted(sources.studies[0].records) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["mine", "studies/mine", "studies/mine/summary.json", "studies"])
def test_a_study_is_found_by_name_folder_and_file(tmp_path: Path, name: str) -> None:
    study(tmp_path / "studies", "mine")
    assert [source.study.study for source in find_sources([name], tmp_path).studies] == ["mine"]


def test_what_is_named_twice_is_read_once(tmp_path: Path) -> None:
    study(tmp_path / "studies", "mine")
    record("one").save(tmp_path / "runs/one.json")
    record("one").save(tmp_path / "runs/copy.json")
    sources = find_sources(["mine", "studies", "runs", "runs/one.json"], tmp_path)
    assert [len(sources.studies), len(sources.runs)] == [1, 1]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema_version": 99}', "\x00\x01", "[" * 100_000, '{"schema_version": 1e999}', "1" * 400],
)
def test_a_damaged_file_is_named_and_skipped(tmp_path: Path, text: str) -> None:
    record("good").save(tmp_path / "runs/good.json")
    (tmp_path / "runs/bad.json").write_text(text)
    sources = find_sources([], tmp_path)
    assert [run.record.id for run in sources.runs] == ["good"]
    assert len(sources.skipped) == 1
    assert "bad.json" in sources.skipped[0]


def test_a_damaged_trial_record_leaves_the_rest_of_the_study(tmp_path: Path) -> None:
    folder = study(tmp_path / "studies")
    (folder / "trials/003.json").write_text("{")
    sources = find_sources([], tmp_path)
    assert sorted(sources.studies[0].records) == [0, 1, 2, 4, 5]
    assert "003.json" in sources.skipped[0]


def test_a_damaged_study_leaves_the_others(tmp_path: Path) -> None:
    study(tmp_path / "studies", "good")
    path = study(tmp_path / "studies", "bad") / "summary.json"
    for text in ("[" * 100_000, path.read_text().replace('"seed": 0', f'"seed": 1{"0" * 400}')):
        path.write_text(text)
        sources = find_sources([], tmp_path)
        assert [source.study.study for source in sources.studies] == ["good"]
        assert "summary.json" in sources.skipped[0]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("trials", "none", "trials"), ("goals", [{"metric": "a", "direction": "up"}], "direction"), ("kind", 3, "kind")],
)
def test_a_study_with_a_wrong_field_says_which(tmp_path: Path, key: str, value: object, said: str) -> None:
    path = study(tmp_path / "studies") / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(RunError, match=said) as error:
        find_sources([], tmp_path)
    assert "summary.json" in str(error.value)
    assert error.value.exit_code == 1


def test_a_missing_name_says_what_exists(tmp_path: Path) -> None:
    study(tmp_path / "studies", "cpu-smollm2-chat-latency")
    with pytest.raises(ConfigError, match="did you mean 'cpu-smollm2-chat-latency'") as error:
        find_sources(["cpu-smollm2-chat-latenci"], tmp_path)
    assert error.value.exit_code == 2


def test_a_missing_name_lists_some_of_many(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for number in range(12):
        (tmp_path / f"runs/{number:02}.json").touch()
    with pytest.raises(ConfigError, match=r"there are 00, .*, 09 and 2 more"):
        find_sources(["nothing"], tmp_path)


def test_without_any_folder_the_way_on_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sglk tune"):
        find_sources([], tmp_path)


def test_an_empty_folder_is_nothing_to_report(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(RunError, match="nothing to report"):
        find_sources([], tmp_path)
