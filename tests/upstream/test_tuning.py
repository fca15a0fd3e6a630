"""Studies over an upstream engine: started again for each setting, and a profile of its own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from sglk_tuner.space import build_space, needs_restart

from sglk.cli import main
from sglk.config.compose import compose
from sglk.config.engine_schema import EngineConfig
from sglk.config.tune_schema import TuneConfig
from sglk.upstream.compose import problem
from tests.upstream.stand_ins import path_with_stand_in

WORDS = (
    "engine=sglang",
    "model.package=null",
    "model.hub_id=org/m",
    "workload=random",
    "workload.num_requests=4",
    "workload.warmup_requests=1",
    "workload.input_len=16",
    "workload.output_len=8",
    "bench.progress=false",
    "bench.cache=keep",
    "study.name=s",
    "study.repeats=1",
)


def tuning(space: dict[str, list[Any]], version: str = "0.5.18") -> TuneConfig:
    config = compose("tune", ["engine=sglang", "chip=h100", "model=qwen7b"]).config
    return replace(config, engine=EngineConfig("sglang", version), search=replace(config.search, space=space))


def test_settings_that_the_version_has_not_are_never_started() -> None:
    space = build_space(tuning({"runtime.schedule_policy": ["fcfs", "lpm", "shortest_prompt_first"]}))
    assert [point["runtime.schedule_policy"] for point in space.points] == ["fcfs", "lpm"]
    assert "no equivalent in sglang 0.5.18" in space.impossible[0].reason
    later = build_space(tuning({"runtime.schedule_policy": ["shortest_prompt_first"]}, "0.5.23"))
    assert len(later.points) == 1


def test_every_setting_of_an_upstream_engine_needs_a_start() -> None:
    assert needs_restart("runtime.max_running_requests", "sglang")
    assert not needs_restart("runtime.max_running_requests", "native")
    assert problem(compose("serve", ["runtime.radix_min_len=512"]).config) is None


@pytest.mark.slow
def test_a_study_over_an_engine_ends_with_a_profile_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", path_with_stand_in())
    options = tmp_path / "conf" / "search"
    options.mkdir(parents=True)
    (options / "mine.yaml").write_text('{"name": "mine", "space": {"runtime.max_running_requests": [4, 8]}}')
    assert main(["tune", "--config-dir", "conf", *WORDS, "search=mine"]) == 0, capsys.readouterr().err
    summary = json.loads((tmp_path / "studies" / "s" / "summary.json").read_text())
    assert [trial["state"] for trial in summary["trials"]] == ["COMPLETE"] * 3
    # The default, and each of the two: a process for each, and none for measuring one of them again.
    assert {trial["log"] for trial in summary["trials"]} == {f"engine-00{number}.log" for number in (1, 2, 3)}
    profile = yaml.safe_load((tmp_path / "profiles" / "cpu" / "smollm2-sglang.yaml").read_text())["profile"]
    assert profile["engine"] == "sglang 0.5.18 on cpu"
    assert profile["versions"]["sglang"] == "0.5.18"
    assert compose("serve", [*WORDS[:3]]).profile_path == tmp_path / "profiles" / "cpu" / "smollm2-sglang.yaml"
    native = compose("serve", []).profile_path
    assert native is None or native.name == "smollm2.yaml"
