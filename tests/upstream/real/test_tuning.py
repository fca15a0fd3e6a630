"""A study over real SGLang: a start for each setting, and a profile at the end."""

import json
from pathlib import Path

import pytest
import yaml

from sglk.cli import main
from sglk.config.compose import compose
from tests.upstream.real.engines import words

SPACE = {"runtime.max_running_requests": [4, 8], "runtime.chunked_prefill_size": [32, 64, 128]}

MEASURED = (
    "workload=random",
    "workload.num_requests=8",
    "workload.warmup_requests=1",
    "workload.input_len=48",
    "workload.output_len=16",
    "bench.progress=false",
    "study.name=s",
    "study.repeats=1",
    "study.start_timeout_s=600",
)


@pytest.mark.upstream
@pytest.mark.timeout(3600)
def test_a_study_of_six_settings_ends_with_a_profile(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = tmp_path / "conf" / "search"
    options.mkdir(parents=True)
    (options / "six.yaml").write_text(json.dumps({"name": "six", "sampler": "grid", "space": SPACE}))
    # The default is one of the six.
    deployment = [*words("sglang", tiny, tmp_path), "runtime.max_running_requests=8"]
    deployment.remove("profiles=none")
    assert main(["tune", "--config-dir", "conf", *deployment, *MEASURED, "search=six"]) == 0, capsys.readouterr().err
    summary = json.loads((tmp_path / "studies" / "s" / "summary.json").read_text())
    assert [trial["state"] for trial in summary["trials"]] == ["COMPLETE"] * len(summary["trials"])
    assert len(summary["trials"]) == 6
    (file,) = (tmp_path / "profiles" / "cpu").glob("*-sglang.yaml")
    profile = yaml.safe_load(file.read_text())["profile"]
    assert profile["engine"] == "sglang 0.5.18 on cpu"
    assert profile["versions"]["sglang"] == "0.5.18"
    assert compose("serve", deployment).profile_path == file
