import json
from pathlib import Path

import pytest
import yaml

from sglk.cli import main


def test_show_prints_the_configuration_and_every_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "chip=kunlun", "model=qwen32b", "runtime.schedule_policy=lpm"]) == 0
    text, _, table = capsys.readouterr().out.partition("\n\n")
    config = yaml.safe_load(text)
    assert config["chip"]["name"] == "kunlun"
    assert config["runtime"]["chunked_prefill_size"] == 3072
    devices = [f"kunlun:{index}" for index in range(4)]
    assert config["groups"] == [{"name": "group0", "devices": devices, "weight": 1.0, "standby": False}]
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()[1:] if line.strip()}
    assert rows["runtime.schedule_policy"] == ["lpm", "command", "line"]
    assert rows["runtime.mem_fraction_static"] == ["0.75", "chip", "kunlun"]
    assert rows["runtime.tp_size"][:2] == ["4", "automatic:"]
    assert " ".join(rows["runtime.tp_size"]).endswith("needs 65.5 GB a device, kunlun plans 25.8 GB")
    assert rows["runtime.dtype"] == ["auto", "default"]


def test_json_and_yaml_are_whole_documents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--json", "chip=h100"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["config"]["chip"]["figures"]["memory_gib"]["quality"] == "datasheet"
    assert document["choices"]["chip"] == "h100"
    assert document["sources"]["runtime.chunked_prefill_size"] == "chip h100"
    assert main(["show", "--yaml", "chip=h100"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["chip"]["memory_gib"] == 80


def test_show_composes_for_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--command", "tune", "workload=long_prompt", "--yaml"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["workload"]["name"] == "long_prompt"
    assert config["search"]["space"]["runtime.schedule_policy"] == ["fcfs", "lpm"]
    assert main(["show", "--command", "tuen"]) == 2
    assert "did you mean 'tune'?" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["--yaml", "--json"])
def test_secrets_are_masked(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "server.api_key=hunter2",
        "server.admin_api_key=hunter2",
        "bench.api_key=hunter2",
        "backend.options.license-key=hunter2",
        "study.storage='postgresql://sglk:hunter2@db/studies'",
    ]
    assert main(["show", "--command", "tune", form, *words]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert "postgresql://sglk:***@db/studies" in text
    assert text.count("***") == len(words)


def test_a_profile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profiles" / "kunlun" / "qwen7b.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nruntime: {page_size: 128, radix_min_len: 64}\nprofile: {kind: measured}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["show", "chip=kunlun", "model=qwen7b"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text.partition("\n\n")[0])["profile"] == {"file": str(file), "kind": "measured"}
    assert text.count(f"profile {file}") == 2


@pytest.mark.parametrize("command", ["serve", "bench", "tune"])
def test_help_lists_groups_keys_and_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--command", command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: sglk show ")
    assert "kunlun_p800" in text
    assert "runtime.chunked_prefill_size" in text
    assert ("search.n_trials" in text) == (command == "tune")
    assert "  sglk show chip=l20 model=qwen32b" in text
