import json
from pathlib import Path

import pytest
import yaml

from sglk.bench.record import Record
from sglk.cli import main

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
    shown = capsys.readouterr().out
    assert "measured" not in shown
    assert main(["report", "--json"]) == 0
    assert '"simulated"' in json.dumps(json.loads(capsys.readouterr().out))


def test_simulated_and_measured_trials_never_share_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *WORDS, "study.save_profile=false"]) == 0
    capsys.readouterr()
    assert main(["tune", *WORDS, "study.save_profile=false", "study.simulate=false"]) == 1
    assert "was made for something else (simulate: True -> None)" in capsys.readouterr().err
