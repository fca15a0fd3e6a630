"""Files that suit another engine: what an upstream engine has no words for is left out, unless the user stated it."""

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglk.cli import main
from sglk.config.compose import compose
from sglk.config.engine_schema import EngineConfig
from sglk.config.fleet import replica_configs
from sglk.config.schema import RuntimeConfig, ServeConfig
from sglk.config.search_path import search_path
from sglk.errors import ConfigError
from sglk.upstream.compose import compose_command

ENGINES = {"sglang": "0.5.18", "vllm": "0.32.0"}

OTHER: dict[str, Any] = {
    "chunked_prefill_size": 4096,
    "max_prefill_tokens": 4096,
    "max_running_requests": 200,
    "enable_mixed_chunk": True,
    "mem_fraction_static": 0.4,
    "max_total_tokens": 65536,
    "schedule_policy": "shortest_prompt_first",
    "schedule_conservativeness": 0.5,
    "page_size": 64,
    "radix_min_len": 512,
    "disable_radix_cache": True,
    "kv_cache_dtype": "fp16",
    "dtype": "fp32",
    "quantization": "w8a16",
    "load_format": "dummy",
    "context_length": 1024,
    "allow_auto_truncate": True,
    "enable_deterministic_inference": True,
    "device_memory_gib": 10.0,
    "num_threads": 3,
    "enable_torch_compile": True,
    "disable_cuda_graph": True,
    "random_seed": 7,
}
"""Another value of each runtime parameter than the one that is there without it."""

NOT_SAID = {
    # Of sglk's own engine: what upstream engines do in its place is theirs.
    "sglang": {"nan_guard", "tp_size"},
    # One budget for prompts and decodes, which are always mixed; and it compiles unless it is told not to.
    "vllm": {"nan_guard", "tp_size", "max_prefill_tokens", "enable_mixed_chunk", "enable_torch_compile"},
}


@cache
def deployment(engine: str, chip: str = "h100") -> ServeConfig:
    composed = compose("serve", [f"chip={chip}", "model=qwen7b", "profiles=none"]).config
    return replace(composed, engine=EngineConfig(engine, ENGINES[engine]))


def told(config: ServeConfig) -> Any:
    """Return all that an engine is told: words and variables, or why it is not started."""
    try:
        made = compose_command(config)
    except ConfigError as refused:
        return str(refused)
    return made.argv, made.environment


@pytest.mark.parametrize("engine", ENGINES)
def test_each_runtime_parameter_is_said_or_refused(engine: str) -> None:
    base = deployment(engine)
    for name in {field.name for field in fields(RuntimeConfig)} - NOT_SAID[engine]:
        changed = told(replace(base, runtime=replace(base.runtime, **{name: OTHER[name]})))
        assert changed != told(base), name
        assert isinstance(changed, tuple) or f"runtime.{name}=" in changed


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_no_parameter_of_a_file_ends_the_start(engine: str) -> None:
    for chip in search_path(None).options("chip"):
        base = deployment(engine, chip)
        for name, value in OTHER.items():
            made = compose_command(replace(base, runtime=replace(base.runtime, **{name: value})), inherited={name})
            refused = [note for note in made.notes if "not stated by you" in note]
            assert all(f"runtime.{name}=" in note for note in refused)


def test_a_profile_for_another_engine_is_taken_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "profiles" / "h100" / "other.yaml"
    profile.parent.mkdir(parents=True)
    runtime = "{schedule_policy: lpm, radix_min_len: 128, max_running_requests: 48, schedule_conservativeness: 0.7}"
    profile.write_text(f"# @package _global_\nruntime: {runtime}\n")
    words = ["chip=h100", "model=qwen7b", "engine=vllm", "profiles=h100/other"]
    assert main(["serve", *words, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "--max-num-seqs 48" in out
    assert "# runtime.schedule_policy=lpm has no equivalent in vllm 0.32.0" in out
    assert "it was not stated by you, so runtime.schedule_policy=fcfs is used" in out
    assert "# runtime.radix_min_len=128 has no equivalent" in out
    # What is typed, or stated for a group, is a wish and not a leftover.
    assert main(["serve", *words, "runtime.schedule_policy=lpm", "--dry-run"]) == 2
    assert "write runtime.schedule_policy=fcfs" in capsys.readouterr().err
    group = "groups=[{name: a, devices: ['cuda:0'], runtime: {schedule_policy: lpm}}]"
    (replica,) = replica_configs(compose("serve", [*words, "runtime.tp_size=1", group]))
    assert "schedule_policy" not in replica.inherited
    assert "radix_min_len" in replica.inherited
