"""The whole way with the real server: compose, serve, tune, profile, serve again."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from sglk.bench.record import Record
from sglk.cli import main
from sglk.config.compose import compose
from sglk.testing.tiny import write_tiny_model

WORDS = (
    "chip=cpu",
    "model=./tiny",
    "workload=random",
    "workload.num_requests=4",
    "workload.warmup_requests=1",
    "workload.input_len=16",
    "workload.output_len=8",
    "search=mine",
    "bench.progress=false",
    "runtime.max_total_tokens=2048",
    "runtime.num_threads=1",
    "study.name=s",
)


def test_a_tiny_model_is_tuned_and_served_with_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny_model(tmp_path / "tiny")
    options = tmp_path / "conf" / "search"
    options.mkdir(parents=True)
    (options / "mine.yaml").write_text('{"name": "mine", "space": {"runtime.max_running_requests": [1, 4]}}')
    assert main(["tune", "--config-dir", "conf", *WORDS]) == 0, capsys.readouterr().err

    summary = json.loads((tmp_path / "studies" / "s" / "summary.json").read_text())
    assert [trial["state"] for trial in summary["trials"]] == ["COMPLETE"] * 3
    assert {trial["log"] for trial in summary["trials"]} == {"engine-001.log"}
    for trial in summary["trials"]:
        record = Record.load_file(tmp_path / "studies" / "s" / trial["record"])
        assert record.counts.completed == 4
        assert record.runtime is not None
        assert {f"runtime.{key}": value for key, value in record.runtime.items()}.items() >= trial["params"].items()
        assert record.server.kv_capacity_tokens == 2048

    served = compose("serve", ["chip=cpu", "model=./tiny"])
    assert served.profile_path == tmp_path / "profiles" / "cpu" / "tiny.yaml"
    assert served.config.profile is not None
    winner = summary["trials"][summary["winner"]]
    assert served.config.runtime.max_running_requests == winner["params"]["runtime.max_running_requests"]
    assert served.config.runtime.max_total_tokens == 2048
    assert datetime.fromisoformat(str(served.config.profile.created)).tzinfo is not None
    assert served.config.profile.versions["torch"]


@pytest.mark.slow
def test_a_space_typed_on_the_command_line_reaches_the_real_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words of the tuner, however they are written, are kept from `sglk serve`, which would refuse them."""
    monkeypatch.chdir(tmp_path)
    write_tiny_model(tmp_path / "tiny")
    options = tmp_path / "conf" / "search"
    options.mkdir(parents=True)
    (options / "mine.yaml").write_text('{"name": "mine", "space": {}}')
    typed = ("search.space.runtime.max_running_requests=[4,8]", "++search.n_trials=2", "++study.repeats=1")
    address = ("++server.host=192.0.2.1", "+server.port=1", "++profiles=none", "++runtime.page_size=16")
    assert main(["tune", "--config-dir", "conf", *WORDS, *typed, *address]) == 0, capsys.readouterr().err

    summary = json.loads((tmp_path / "studies" / "s" / "summary.json").read_text())
    assert summary["space"] == {"runtime.max_running_requests": [4, 8]}
    assert [trial["state"] for trial in summary["trials"][:2]] == ["COMPLETE"] * 2
    assert "next: sglk serve --config-dir conf chip=cpu model=./tiny" in capsys.readouterr().out
