"""Files of a user's configuration folder, sound and damaged."""

from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.config.schema import GroupConfig
from sglk.config.search_path import search_path
from tests.config.user_files import refusal, write


def test_a_chip_is_named_as_its_file(folder: Path) -> None:
    write(folder / "chip" / "mine.yaml", "# @package _global_\ndefaults: [kunlun]\n")
    assert "says chip.name=kunlun; give both one name" in refusal("serve", "chip=mine", config_dir=folder)


def test_a_config_dir_adds_and_replaces(folder: Path) -> None:
    conf = folder / "my conf"
    write(
        conf / "chip" / "mine.yaml",
        "# @package _global_\ndefaults: [kunlun]\nchip: {name: mine}\nruntime: {page_size: 128, radix_min_len: 64}\n",
    )
    write(conf / "runtime" / "default.yaml", "tp_size: 2\n")
    composed = compose("serve", ["chip=mine", "model=qwen32b"], conf)
    assert (composed.config.chip.name, composed.config.chip.memory_gib) == ("mine", 32)
    assert composed.config.groups == [GroupConfig("group0", ["kunlun:0", "kunlun:1"])]
    assert composed.sources["runtime.radix_min_len"] == "chip mine"
    assert composed.sources["runtime.chunked_prefill_size"] == "chip kunlun"
    assert "is not a folder" in refusal("serve", config_dir=folder / "none")


def test_all_missing_values_are_listed_at_once(folder: Path) -> None:
    conf = folder / "conf"
    write(conf / "chip" / "mine.yaml", "# @package _global_\nchip: {name: mine, vendor: '${model.hub_id}'}\n")
    write(conf / "model" / "bare.yaml", "hub_id: ???\n")
    message = refusal("serve", "chip=mine", "model=bare", config_dir=conf)
    assert message.startswith("no value for chip.title, chip.backend, model.name, model.hub_id;")
    assert "chip.vendor" not in message


def test_files_that_speak_of_hydra_are_composed_by_its_rules(folder: Path) -> None:
    shipped = (search_path().roots[0] / "serve.yaml").read_text(encoding="utf-8")
    write(folder / "more" / "server" / "quiet.yaml", "log_level: error\n")
    hydra = f"hydra:\n  run: {{dir: elsewhere}}\n  searchpath: ['file://{folder}/more']\n"
    write(folder / "conf" / "serve.yaml", f"{shipped.replace('  - _self_', '  - server: quiet')}  - _self_\n{hydra}")
    assert compose("serve", (), folder / "conf").config.server.log_level == "error"
    write(folder / "conf" / "serve.yaml", f"{shipped}hydra:\n  rum: {{dir: elsewhere}}\n")
    assert "unknown key 'hydra.rum'" in refusal("serve", config_dir=folder / "conf")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"- a\n", "odd.yaml holds no mapping"),
        (b"chip:\n\tname: x\n", "odd.yaml"),
        (b"chip: {name: \xff\xfe}\n", "odd.yaml is not UTF-8 text"),
        (b"# @package a b c\nchip: {}\n", "odd.yaml: Too many components"),
        (b"# @package _global_\ndefaults: [nothere]\n", "'chip/nothere' does not exist; options: a100_40g,"),
        (b"# @package _global_\ndefaults: [kunlum]\n", "'chip/kunlum' does not exist; did you mean 'kunlun'?"),
        (b"# @package _global_\ndefaults: 3\n", "odd.yaml: Invalid defaults list, defaults must be a list (got int)"),
        (b"# @package _global_\nchip: 3\n", "chip=3 in "),
        (b"# @package _global_\ndefaults: [odd]\nchip: {name: x}\n", "in a circle"),
        (b"# @package _global_\nchip: {memry: 3}\n", "odd.yaml; did you mean 'chip.memory_gib'?"),
        (b"# @package _global_\nchip: {memory_gib: lots}\n", "odd.yaml is not a number or null"),
        (b"# @package _global_\nchip: {title: '${oc.env:'}\n", "the value of chip.title is not a sound interpolation"),
        (b"chip: {name: x}\n", "odd.yaml; a file with a `chip:` node of its own begins with `# @package _global_`"),
        (b"", "no value for chip.name, chip.title, chip.vendor, chip.backend"),
    ],
)
def test_a_damaged_file_of_the_user_is_named(folder: Path, content: bytes, part: str) -> None:
    (folder / "chip").mkdir()
    (folder / "chip" / "odd.yaml").write_bytes(content)
    assert part in refusal("serve", "chip=odd", config_dir=folder)


@pytest.mark.parametrize("command", ["serve", "bench"])
def test_a_file_in_place_of_a_command_has_its_whole_defaults_list(folder: Path, command: str) -> None:
    file = write(folder / f"{command}.yaml", "server: {port: 1}\n")
    message = refusal(command, config_dir=folder)
    assert message.startswith(f"{file} replaces sglk's own {command}.yaml")
    assert f"lacks sglk_{command}, chip, model" in message
    write(file, f"defaults: [sglk_{command}, runtime: default, chip: cpu, model: smollm2, backend: auto]\n")
    assert "lacks engine" in refusal(command, config_dir=folder)
    assert compose("tune", (), folder).config.server.port == 8000


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("deny: [rope]", "backend.deny=['rope'] in {} is not a mapping"),
        ("deny: {rope: [slow]}", "backend.deny.rope=['slow'] in {} is not a mapping"),
        ("environment: {A: [1]}", "backend.environment.A=[1] in {} is not text"),
        (
            "deny: {rope: {resaon: slow}}",
            "unknown key 'backend.deny.rope.resaon' in {}; did you mean 'backend.deny.rope.reason'?",
        ),
    ],
)
def test_an_entry_of_the_wrong_shape_is_named_with_its_file(folder: Path, text: str, part: str) -> None:
    file = write(folder / "backend" / "cpu.yaml", f"name: cpu\n{text}\n")
    assert refusal("serve", "backend=cpu", config_dir=folder) == part.format(file)


def test_device_groups_in_a_file_need_no_quotes_of_the_grammar(folder: Path) -> None:
    shipped = (search_path().roots[0] / "serve.yaml").read_text(encoding="utf-8")
    write(folder / "serve.yaml", f"{shipped}groups: cuda:0,kunlun:0;cuda:1\n")
    assert [group.devices for group in compose("serve", (), folder).config.groups] == [
        ["cuda:0", "kunlun:0"],
        ["cuda:1"],
    ]
