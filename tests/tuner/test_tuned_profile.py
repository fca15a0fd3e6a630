import dataclasses
from pathlib import Path
from typing import Any

import pytest
from sglk_tuner.profile import Finding, build_profile, delta, read_profile, render, write_profile
from sglk_tuner.space import apply

from sglk.bench.record import Counts, LoadRecord, MachineRecord, Record, ServerRecord, ToolRecord
from sglk.config.compose import compose
from sglk.config.profiles import content_hash
from sglk.config.provenance import ProfileSearch
from sglk.config.schema import RuntimeConfig
from sglk.errors import RunError
from tests.tuner.studies import CHUNK, WINDOW, config_of


def record(throughput: float, kind: Any = "measured") -> Record:
    return Record(
        id="r",
        kind=kind,
        created="2026-11-29T12:00:00+00:00",
        command="sglk tune",
        tool=ToolRecord("0.3.1", "abc123"),
        machine=MachineRecord("a processor", 2, 16.0, "Linux"),
        versions={"python": "3.11"},
        chip="cpu",
        model="smollm2",
        engine="native",
        backend="cpu",
        server=ServerRecord(kv_capacity_tokens=999, peak_memory_bytes=123, versions={"torch": "2.13"}, dtype="fp32"),
        runtime=None,
        workload={
            "name": "chat",
            "hash": "0f" * 32,
            "seed": 3,
            "arrival": "closed",
            "num_requests": 8,
            "warmup_requests": 2,
        },
        load=LoadRecord("chat", "flush", "launched", 60.0, slo={"ttft_s": 0.5, "tpot_s": None, "e2e_s": None}),
        counts=Counts(8, 8, 0, 0, 2),
        duration_s=1.0,
        valid=True,
        summary={"output_throughput": throughput, "tpot_s_p50": None},
        engine_stats={"retractions": 2.0},
    )


def finding(params: dict[str, Any], kind: str = "measured") -> Finding:
    config = config_of({WINDOW: [4, 8]})
    config.model.name = "smollm2"
    return Finding(
        config=apply(config, params),
        defaults=config.runtime,
        records=[record(120.0, kind), record(130.0, kind), record(110.0, kind)],
        baseline=[record(100.0, kind)],
        baseline_failure=None,
        search=ProfileSearch("s", "grid", 0, "ab", {"COMPLETE": 3, "FAIL": 1}, "the rule"),
        objective="maximize:output_throughput",
        gain={"output_throughput": {"ratio": 1.2, "low": 1.1, "high": 1.3, "pairs": 3, "method": "t"}},
        verdict="trial 2 beats the default: output_throughput 1.20 times as good",
        device={"name": "a device", "driver": "5.0", "sdk": "6.1"},
    )


def test_a_profile_composes_into_the_next_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_profile(build_profile(finding({WINDOW: 4, CHUNK: 1024})), tmp_path / "profiles" / "cpu" / "smollm2.yaml")
    composed = compose("serve", ["chip=cpu", "model=smollm2"])
    runtime, profile = composed.config.runtime, composed.config.profile
    assert (runtime.max_running_requests, runtime.chunked_prefill_size) == (4, 1024)
    assert compose("serve", ["chip=cpu", "model=smollm2", f"{WINDOW}=9"]).config.runtime.max_running_requests == 9
    assert profile is not None
    assert profile.tool == "sglk 0.3.1 (abc123)"
    assert profile.valid_engine == ">=0.3,<0.4"
    assert profile.expires == "2027-05-28"
    assert profile.versions == {"python": "3.11", "torch": "2.13"}
    assert (profile.chip.device, profile.chip.driver, profile.chip.sdk) == ("a device", "5.0", "6.1")
    assert (profile.workload.hash, profile.workload.seed, profile.workload.warmup_requests) == ("0f" * 32, 3, 2)
    assert profile.search.trials == {"COMPLETE": 3, "FAIL": 1}
    assert profile.slo["ttft_s"] == 0.5
    assert profile.resolved["max_running_requests"] == 4
    assert profile.results["output_throughput"] == 120.0
    assert profile.results["repeats"] == 3
    assert (profile.results["kv_capacity_tokens"], profile.results["retractions"]) == (999, 2.0)
    assert profile.baseline["output_throughput"] == 100.0
    assert profile.gain["output_throughput"]["low"] == 1.1


def test_people_read_the_headline_first() -> None:
    content = build_profile(finding({WINDOW: 4}))
    first, *lines = render(content).splitlines()
    assert first == "# @package _global_"
    assert "Measured by `sglk tune`, 2026-11-29: maximize:output_throughput under chat on a device." in lines[0]
    assert "1.20 times as good" in lines[1]
    assert "`sglk serve` picks this file up for chip cpu and model smollm2" in lines[2]


def test_the_same_study_gives_the_same_file_and_a_changed_one_shows(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    write_profile(build_profile(finding({WINDOW: 4})), path)
    content = read_profile(path)
    assert content == build_profile(finding({WINDOW: 4}))
    assert content_hash(content) == content["profile"]["hash"]
    content["runtime"]["max_running_requests"] = 5
    assert content_hash(content) != content["profile"]["hash"]


def test_the_delta_holds_what_differs_and_belongs_to_serving() -> None:
    defaults = RuntimeConfig()
    tuned = dataclasses.replace(defaults, max_running_requests=4, load_format="dummy", random_seed=9)
    assert delta(tuned, defaults) == {"max_running_requests": 4}
    assert delta(defaults, defaults) == {}


def test_what_differs_comes_with_the_devices_that_it_was_measured_on() -> None:
    defaults = RuntimeConfig(tp_size=2)
    assert delta(dataclasses.replace(defaults, mem_fraction_static=0.95), defaults) == {
        "mem_fraction_static": 0.95,
        "tp_size": 2,
    }
    assert delta(defaults, defaults) == {}


def test_what_was_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "cpu" / "m.yaml"
    assert write_profile(build_profile(finding({WINDOW: 4})), path) is None
    first = path.read_text()
    kept = write_profile(build_profile(finding({WINDOW: 8})), path)
    assert kept is not None
    assert kept.read_text() == first
    second = write_profile(build_profile(finding({CHUNK: 1024})), path)
    assert second != kept
    assert sorted(path.parent.glob("*.yaml")) == [path]


def test_simulated_never_replaces_measured(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    write_profile(build_profile(finding({WINDOW: 8}, "simulated")), path)
    assert read_profile(path)["profile"]["kind"] == "simulated"
    write_profile(build_profile(finding({WINDOW: 4})), path)
    with pytest.raises(RunError, match="was measured"):
        write_profile(build_profile(finding({WINDOW: 8}, "simulated")), path)
    assert read_profile(path)["profile"]["kind"] == "measured"


def test_a_failed_baseline_is_named() -> None:
    failed = dataclasses.replace(finding({WINDOW: 4}), baseline=[], baseline_failure="out of memory")
    assert build_profile(failed)["profile"]["baseline"] == {"failed": "out of memory"}
