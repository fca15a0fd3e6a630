"""Chip and profile files that strangers wrote: they can describe, and nothing else."""

from pathlib import Path

import pytest
import yaml

from sglk.config.compose import compose
from sglk.errors import ConfigError

CHIP = {"name": "evil", "title": "Evil", "vendor": "x", "backend": "cpu", "dtypes": ["fp32"]}


def chip_file(folder: Path, text: str) -> Path:
    file = folder / "chip" / "evil.yaml"
    file.parent.mkdir()
    file.write_text(f"# @package _global_\nchip: {yaml.safe_dump(CHIP, default_flow_style=True)}{text}\n")
    return folder


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("runtime: {dtype: '${oc.env:HOME}'}", "runtime.dtype is '${oc.env:HOME}', and a chip may not ask the machine"),
        ("runtime: {dtype: 'x-${oc.env:HOME,none}'}", "may not ask the machine"),
        ("runtime: {dtype: '${oc.decode:${oc.env:HOME}}'}", "may not ask the machine"),
        (
            "backend: {environment: {LD_PRELOAD: /tmp/evil.so}}",
            "sets backend.environment.LD_PRELOAD; a chip's file may",
        ),
        ("backend: {options: {_target_: os.system}}", "_target_ names code to run"),
        ("server: {host: 0.0.0.0}", "sets server.host"),
        ("server: {api_key: null}", "sets server.api_key"),
        ("model: {path: /tmp/evil}", "sets model.path"),
        ("_target_: os.system", "_target_"),
        ("runtime: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ],
)
def test_a_chip_is_data(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose("serve", ["chip=evil", "model=smollm2"], chip_file(tmp_path, text))
    assert told in str(refusal.value)
    assert "evil.yaml" in str(refusal.value)


def test_a_chip_may_deny_ops_and_name_its_limits(tmp_path: Path) -> None:
    text = "backend: {fallback: forbid, deny: {run_experts: {reason: wrong for 3 experts}}}\nruntime: {page_size: 8}"
    config = compose("serve", ["chip=evil", "model=smollm2"], chip_file(tmp_path, text)).config
    assert config.backend.deny["run_experts"].reason == "wrong for 3 experts"
    assert config.runtime.page_size == 8


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("runtime: {dtype: '${oc.env:HOME}'}", "a profile may not ask the machine for values"),
        ("runtime: {_target_: os.system}", "_target_"),
        ("server: {host: 0.0.0.0}", "may hold `runtime` and `profile` only"),
        ("backend: {environment: {LD_PRELOAD: /tmp/evil.so}}", "may hold `runtime` and `profile` only"),
    ],
)
def test_a_profile_is_data(text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "profiles" / "cpu" / "smollm2.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{text}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        compose("serve", ["chip=cpu", "model=smollm2"])
    assert told in str(refusal.value)
