"""`sglk plan` as it is typed."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sglk.cli import main
from sglk.commands.terminal import plain_table
from sglk.testing.tiny import write_tiny_model


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(run(capsys, *words, "--json")[1])
    return plan


def test_the_tables_say_what_fits_and_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "chip=a100_40g", "model=qwen32b", "runtime.tp_size=2")
    assert code == 1
    for part in ("fits with changes", "runtime.mem_fraction_static=0.9", "31.96", "tp 8", "131072", "w4a16"):
        assert part in out
    code, out, _ = run(capsys, "chip=h100", "model=qwen7b")
    assert code == 0
    assert "to make it fit" not in out


def test_the_document_keeps_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, "chip=kunlun", "model=qwen32b", "runtime.tp_size=1", "plan.context_length=4096")
    assert list(plan) == ["schema_version", "sglk", "kind", "verdict", "replicas", "devices"]
    assert (plan["schema_version"], plan["verdict"]) == (1, "fits with changes")
    (replica,) = plan["replicas"]
    assert replica["tp_sizes"] == [1, 2, 4, 8]
    assert replica["ways"][0]["changes"] == {"runtime.tp_size": "2", "runtime.quantization": "w8a8"}
    assert replica["per_device"]["weights"]["total"] == sum(
        replica["per_device"]["weights"][part] for part in ("embedding", "head", "attention", "feed_forward", "norms")
    )
    assert replica["kv"] == {
        "dtype": "fp16",
        "bytes_per_token": 2 * 64 * 8 * 128 * 2,
        "tokens": 0,
        "page_size": 128,
        "requests": 0,
    }
    weights = {(each["quantization"], each["tp_size"]): each for each in replica["weight_options"]}
    assert weights["w8a8", 2]["declared"]
    assert not weights["w4a16", 2]["declared"]
    assert replica["upstream"] is None


def test_a_number_of_devices_that_was_chosen_is_explained_and_what_would_do_with_fewer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("chip=kunlun", "model=qwen32b", "backend=sim")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert " sim:0 to 3 " in out
    note = "qwen32b in fp16 needs 65.5 GB a device, kunlun plans 25.8 GB: serving on 4 devices (runtime.tp_size=4)"
    assert note in out
    assert "to make it fit fewer devices" in out
    (replica,) = document(capsys, *words)["replicas"]
    assert (replica["tp_size"], replica["tp_size_note"], replica["verdict"]) == (4, note, "fits")
    assert [way["changes"] for way in replica["ways"]] == [{"runtime.tp_size": "2", "runtime.quantization": "w8a8"}]
    (stated,) = document(capsys, *words, "runtime.tp_size=4")["replicas"]
    assert (stated["tp_size_note"], stated["ways"], stated["kv"]) == (None, [], replica["kv"])


def test_a_size_that_does_not_divide_the_model_s_own_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    code, _, err = run(capsys, "chip=h100", f"model={folder}", "runtime.tp_size=3")
    assert (code, err.count("\n")) == (2, 1)
    assert "runtime.tp_size=3 does not split the" in err


def test_the_changes_of_a_group_are_told_as_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    groups = "[{name: old, devices: ['cuda:0'], chip: rtx4090}, {name: new, devices: ['cuda:1']}]"
    code, out, _ = run(capsys, "chip=h100", "model=qwen32b", f"groups={groups}", "plan.context_length=4096")
    assert code == 1
    assert "for group 'old' alone" in out
    assert "for group 'new' alone" not in out
    assert [line.split()[0] for line in out.splitlines() if " cuda:" in line] == ["old/0", "new/0"]


@pytest.mark.parametrize("key", ["engine", "plan.engine"])
def test_the_automatic_values_of_sglang(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("chip=h100", "model=qwen72b", "runtime.tp_size=4", f"{key}=sglang")
    upstream = document(capsys, *words, "runtime.chunked_prefill_size=2048")["replicas"][0]["upstream"]
    assert upstream["engine"] == "sglang 0.5.18"
    assert upstream["automatic"]["chunked_prefill_size"] == 8192
    assert upstream["automatic"]["mem_fraction_static"] == 0.819
    assert upstream["with_our_chunk"]["mem_fraction_static"] == 0.875
    assert upstream["with_our_chunk"]["kv_tokens"] > upstream["automatic"]["kv_tokens"] > 0
    assert "0.819" in run(capsys, *words)[1]


def test_a_model_is_planned_from_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    (replica,) = document(capsys, "chip=l20", f"model={folder}")["replicas"]
    assert (replica["model"], replica["verdict"], replica["wanted"]["context_length"]) == ("tiny", "fits", 256)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["chip=cuda", "model=qwen7b"], "write runtime.device_memory_gib=GIB, or choose the chip of your card"),
        (["chip=h100", "chip.dtypes=[fp7]", "model=qwen7b"], "chip.dtypes=fp7 is not allowed; allowed: fp32, bf16"),
        (["chip=h100", "runtime.dtype=fp9"], "runtime.dtype=fp9 is not allowed"),
        (["chip=kunlun", "runtime.kv_cache_dtype=fp8_e4m3"], "kv_cache_dtype=fp8_e4m3 is not allowed on chip 'kunlun'"),
        (["chip=h100", "model=qwen32b", "runtime.tp_size=3"], "allowed: 1, 2, 4, 8"),
        (["chip=h100", "model=deepseek_v2_lite"], "architecture 'DeepseekV2ForCausalLM' is not supported"),
        (["chip=h100", "model=local"], "says nowhere where its files are"),
        (["chip=h100", "model=no-such/model"], "has no numbers, and its files are not on this machine"),
        (["chip=h100", "model=local", "model.architecture=LlamaForCausalLM"], "`hidden_size` is missing"),
        (["chip=h100", "plan.context_length=0"], "plan.context_length=0 is too small"),
        (["chip=h100", "plan.requests=0"], "plan.requests=0 is too small"),
        (["chip=h100", "plan.engine=vlm"], "plan.engine=vlm is not allowed"),
        (["chip=h100", "chip.memory_gib=1e7"], "chip.memory_gib=1e+07 is more than any device has, 1048576"),
        (["chip=h100", "runtime.device_memory_gib=1e7"], "runtime.device_memory_gib=1e+07 is more than any"),
        (["chip=h100", "groups=[{name: far, url: 'http://a:1'}]"], "device group 'far' is a server elsewhere, of"),
        (["chip=h100", "calibration=."], "there is no calibration in the folder '.'; name a file or a folder of"),
        (["chip=h100", "plan.length=3"], "unknown key 'plan.length'"),
        (["chip=h100", "runtime.quantization=compressed-tensors"], "asks for a checkpoint that is quantised already"),
    ],
)
def test_errors_are_one_line(
    words: list[str],
    part: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("sglk: error: ")
    assert err.count("\n") == 1
    assert part in err


def test_a_card_without_a_file_of_its_own_is_planned_by_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    (replica,) = document(capsys, "chip=cuda", "model=qwen7b", "runtime.device_memory_gib=24")["replicas"]
    assert replica["per_device"]["planned"] == 24 * 2**30
    assert replica["per_device"]["memory_source"] == "runtime.device_memory_gib"


def test_a_server_elsewhere_is_named_and_the_groups_beside_it_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    groups = "groups=[{name: far, url: 'http://a:1'}, {name: near, devices: ['cuda:0']}]"
    code, out, err = run(capsys, "chip=h100", "model=qwen7b", groups, "--json")
    assert (code, err) == (0, "sglk: warning: device group 'far' is a server elsewhere, and is not planned\n")
    assert [each["group"] for each in json.loads(out)["replicas"]] == ["near"]


def test_no_figure_is_cut_where_a_terminal_is_narrow() -> None:
    table = plain_table("replica", "verdict", "KV tokens", "verdict")
    table.add_row("group", "fits with changes", "1234567", "fits with changes")
    screen = Console(width=24, file=io.StringIO())
    with screen.capture() as capture:
        screen.print(table)
    assert "".join(sign for sign in capture.get() if sign.isdigit()) == "1234567"


@pytest.mark.parametrize("words", [("chip=kunlun", "model=qwen32b"), ("chip=cpu", "model=smollm2")])
def test_nothing_heavy_is_imported(words: tuple[str, ...]) -> None:
    program = (
        "import sys; from sglk.cli import main; main(['plan', *sys.argv[1:]]);"
        "print(*sorted({'torch', 'numpy', 'gguf', 'tokenizers', 'optuna', 'pandas', 'fastapi'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == ""


def test_help_names_the_keys_and_shell_completion_knows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert "plan.context_length" in out
    assert "--json" in out
    assert main(["completion", "--words", "plan", "plan.e"]) == 0
    assert capsys.readouterr().out.strip() == "plan.engine="
