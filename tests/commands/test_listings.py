import json
from pathlib import Path

import pytest

from sglk.cli import main


@pytest.mark.parametrize(
    ("command", "names"), [("chips", ("kunlun", "h100", "cpu")), ("models", ("smollm2", "qwen32b"))]
)
def test_listings_have_a_table_and_json(
    command: str, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == 0
    table = capsys.readouterr().out
    assert main([command, "--json"]) == 0
    listed = {entry["name"] for entry in json.loads(capsys.readouterr().out)}
    for name in names:
        assert name in listed
        assert any(line.startswith(f"{name} ") for line in table.splitlines())
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: sglk {command}")
    assert main([command, "chip=cpu"]) == 2


def test_doubtful_figures_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    main(["chips"])
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows["h100"][1:4] == ["80", "3350", "989.4"]
    assert rows["kunlun_p800"][1:4] == ["96", "4000?", "345?"]
    assert rows["cpu"][1:3] == ["asked", "-"]


def test_chips_of_the_user_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chip").mkdir()
    file = tmp_path / "chip" / "mine.yaml"
    file.write_text("# @package _global_\ndefaults: [kunlun]\nchip: {name: mine, memory_gib: 16}\n")
    assert main(["chips", "--json", "--config-dir", str(tmp_path)]) == 0
    chips = {chip["name"]: chip for chip in json.loads(capsys.readouterr().out)}
    assert (chips["mine"]["memory_gib"], chips["mine"]["backend"]) == (16, "kunlun")
    assert chips["mine"]["runtime"]["chunked_prefill_size"] == 3072


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"chip: {name: odd, memory: 16}\n", "memory: Key 'memory' not in 'ChipConfig'"),
        (b"chip: {name: odd}\n", "no value for backend, title, vendor"),
        (b"chip: [broken\n", "while parsing a flow sequence"),
        (b"chip: {name: \xff\xfe}\n", "is not UTF-8 text"),
        (b"- a\n", "holds no mapping"),
        (b"3\n", "holds no mapping"),
        (b"", "no `chip:` node"),
        (b"chip: 3\n", "chip=3 is not a mapping"),
        (b"defaults: [kunlun]\nruntime: 3\n", "runtime=3 is not a mapping"),
        (b"defaults: 3\n", "defaults=3 is not a list"),
        (b"defaults: [odd]\n", "includes itself"),
        (b"defaults: [nothere]\n", "'chip/nothere', named in the defaults list, does not exist"),
        (b"defaults: [kunlun]\nchip: {vendor: '${oc.env:SGLK_TEST_UNSET}'}\n", "vendor: "),
    ],
)
def test_a_damaged_file_hides_no_other(
    content: bytes, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chip").mkdir()
    file = tmp_path / "chip" / "odd.yaml"
    file.write_bytes(content)
    assert main(["chips", "--json", "--config-dir", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert {"kunlun", "cpu"} <= {chip["name"] for chip in json.loads(printed.out)}
    assert printed.err.startswith(f"sglk: error: {file}")
    assert part in printed.err
    assert printed.err.count("\n") == 1


def test_a_damaged_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("name: mine\nhidden_size: wide\n")
    assert main(["models", "--config-dir", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "smollm2" in printed.out
    assert "mine.yaml: hidden_size: Value 'wide'" in printed.err


def test_models_that_our_own_engine_does_not_have_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("only with")]
    main(["models", "--json"])
    supported = {model["name"]: model["supported"] for model in json.loads(capsys.readouterr().out)}
    assert line == "only with engine=sglang or engine=vllm: deepseek_v2_lite"
    assert [name for name, known in supported.items() if not known] == ["deepseek_v2_lite"]
