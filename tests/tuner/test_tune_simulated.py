import json
from pathlib import Path

import pytest
import yaml
from sglk_tuner.identity import differences

from sglk.bench.record import Record
from sglk.cli import main
from tests.planner.calibrations import entry, write

WORDS = (
    "chip=kunlun",
    "model=qwen7b",
    "runtime.tp_size=1",
    "study.simulate=true",
    "study.repeats=1",
    "workload=random",
    "workload.num_requests=12",
    "workload.output_len=8",
    "search=custom",
    "search.space.runtime.max_running_requests=[1,8]",
    "bench.progress=false",
)


def test_a_study_without_a_device_says_so_in_all_that_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *WORDS]) == 0
    (folder,) = Path("studies").iterdir()
    records = [Record.load_file(path) for path in folder.glob("trials/*.json")]
    assert {record.kind for record in records} == {"simulated"}
    assert {record.runtime["max_running_requests"] for record in records if record.runtime} >= {1, 8}
    profile = yaml.safe_load(Path("profiles/kunlun/qwen7b.yaml").read_text())["profile"]
    assert profile["kind"] == "simulated"
    assert profile["times"] == {"group0": {"kind": "roofline", "name": "kunlun", "error": None, "notes": []}}
    shown = capsys.readouterr().out
    assert "measured" not in shown
    assert shown.count("times are of a roofline") == 1
    assert main(["report", "--json"]) == 0
    assert '"simulated"' in json.dumps(json.loads(capsys.readouterr().out))


def test_simulated_and_measured_trials_never_share_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *WORDS, "study.save_profile=false"]) == 0
    capsys.readouterr()
    assert main(["tune", *WORDS, "study.save_profile=false", "study.simulate=false"]) == 2
    assert "was made for something else (simulate: True -> None)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "difference"),
    [
        ("chip.bandwidth_gb_s=800", "chip.figures.bandwidth_gb_s: 512"),
        ("model.num_hidden_layers=4", "model.numbers.num_hidden_layers: 28 -> 4"),
        ("groups='kunlun:0,kunlun:1'", "groups.group0.devices: ['kunlun:0'] -> ['kunlun:0', 'kunlun:1']"),
        ("router.policy=prefix_aware", "policy: 'least_loaded' -> 'prefix_aware'"),
        ("backend.options.use_torch_fallback=false", "backend.settings.options.use_torch_fallback: True -> False"),
    ],
)
def test_another_deployment_is_another_study(
    word: str, difference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *WORDS, "search.n_trials=1", "study.save_profile=false"]) == 0
    capsys.readouterr()
    assert main(["tune", *WORDS, "search.n_trials=2", "study.save_profile=false", word]) == 2
    assert f"was made for something else ({difference}" in capsys.readouterr().err


def test_times_of_a_new_calibration_do_not_go_on_from_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["chip=cpu", "model=smollm2", *WORDS[2:], "search.n_trials=1", "study.save_profile=false"]
    path = write(entry(created="2026-11-29"))
    assert main(["tune", *words]) == 0
    write(entry(created="2026-11-30"))
    capsys.readouterr()
    assert main(["tune", *words]) == 2
    changed = f"(times: '{path} of 2026-11-29' -> '{path} of 2026-11-30')"
    assert f"was made for something else {changed}" in capsys.readouterr().err


def test_a_study_of_a_version_that_told_less_goes_on() -> None:
    assert differences({"chip": "a"}, {"chip": "a", "groups": {"group0": {}}, "times": "peak figures"}) == []
    assert differences({"chip": "a", "times": "x"}, {"chip": "a", "times": "y"}) == ["times: 'x' -> 'y'"]


@pytest.mark.slow
def test_simulated_trials_are_priced_by_the_calibration_that_is_found_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["chip=cpu", "model=smollm2", *WORDS[2:], "search.n_trials=1", "study.save_profile=false"]
    found = write(entry())
    assert main(["tune", *words]) == 0
    named = found.rename("elsewhere.json")
    assert main(["tune", *words, f"calibration={named}", "study.name=again"]) == 0
    paths = list(Path("studies").glob("*/trials/*.json"))
    groups = [group for path in paths for group in Record.load_file(path).simulated_groups or ()]
    assert {(group.cost.kind, group.cost.name) for group in groups} == {
        ("calibration", str(found)),
        ("calibration", str(named)),
    }
    capsys.readouterr()
    assert main(["tune", *words, "study.simulate=false", "calibration=none"]) == 2
    assert "calibration=none has no use where trials are measured" in capsys.readouterr().err
