"""The example of a chip plugin: its page shows the very files, and installed beside sglk it serves."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from sglk.bench.target import READY_LINE
from sglk.child import ChildProcess
from sglk.testing.tiny import write_tiny_model
from tests.packaging.installing import ROOT, built, fresh_python, install, run

EXAMPLE = ROOT / "examples" / "sglk-plugin-demo"
PAGE = (ROOT / "docs" / "write-a-plugin.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^`(?P<file>[\w./-]+)`: (?:(?!\n\n).)*\n\n```\w+\n(?P<text>.*?\n)```$", re.M | re.S)
"""A code block, and the file that the paragraph above it begins with."""
COMMANDS = re.search(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)[1].splitlines()  # type: ignore[index]


def test_the_page_shows_the_files_of_the_example() -> None:
    blocks = {match["file"]: match["text"] for match in BLOCK.finditer(PAGE)}
    for file, text in blocks.items():
        assert text in (EXAMPLE / file).read_text(encoding="utf-8"), file
    sources = (file for file in EXAMPLE.rglob("*") if file.suffix in (".py", ".toml", ".yaml") and file.stat().st_size)
    assert set(blocks) == {file.relative_to(EXAMPLE).as_posix() for file in sources}
    assert PAGE.count("```") == 2 * (len(blocks) + 1), "a block is of no file"
    assert PAGE.count("\n") <= 120


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheels of sglk and of the example."""
    folder = tmp_path_factory.mktemp("example")
    python = fresh_python(folder)
    for source, name in ((ROOT, "sglk"), (EXAMPLE, "demo")):
        install(python, built(source, "wheel", folder / name))
    return python


@pytest.mark.slow
def test_the_plugin_is_found_with_its_chip(python: Path, tmp_path: Path) -> None:
    assert "sglk plugins" in COMMANDS
    sglk = python.parent / "sglk"
    found = {(each["kind"], each["name"]): each for each in json.loads(run(sglk, "plugins", "--json", cwd=tmp_path))}
    for kind in ("backend", "conf"):
        plugin = found[kind, "demo"]
        assert (plugin["distribution"], plugin["version"], plugin["state"]) == ("sglk-plugin-demo", "1.0", "ok")
        assert Path(plugin["path"]).is_relative_to(python.parents[1])
    assert found["backend", "demo"]["api_version"] == 1
    (listing,) = [command for command in COMMANDS if command.startswith("sglk ops list")]
    ops = run(sglk, *listing.split()[1:], cwd=tmp_path)
    assert re.search(r"attention_decode .* demo", ops), ops


@pytest.mark.slow
def test_the_plugins_own_tests_pass(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the checkout, whose settings of pytest need more than the page installs, and from a copy of the folder."""
    (command,) = [command for command in COMMANDS if command.startswith("pytest ")]
    # Stands for `pip install pytest` alone.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-q -p no:cacheprovider")
    copy = shutil.copytree(EXAMPLE, tmp_path / "my-plugin")
    for words, folder in ((command.split()[1:], ROOT), ([], copy)):
        told = run(python, "-P", "-m", "pytest", *words, cwd=folder)
        assert re.search(r"^\d{2,} passed", told, re.M), told


@contextmanager
def served(python: Path, folder: Path, experts: int) -> Iterator[tuple[httpx.Client, Path]]:
    model = write_tiny_model(folder / "model", architecture="Qwen3MoeForCausalLM", num_experts=experts)
    assert "sglk serve chip=demo model=smollm2" in COMMANDS
    command = [str(python.parent / "sglk"), "serve", "chip=demo", f"model={model}", "server.port=0"]
    log = folder / "log"
    with ChildProcess(command, log=log, label="sglk serve", env={"PYTHONPATH": ""}) as child:
        facts = json.loads(child.wait_for_line(READY_LINE, timeout_s=120)[1])
        with httpx.Client(base_url=facts["url"], timeout=120, trust_env=False) as client:
            yield client, log


@pytest.mark.slow
@pytest.mark.parametrize(("experts", "provider"), [(8, "demo"), (6, "reference")])
def test_the_plugin_serves_and_the_reference_takes_what_it_cannot(
    python: Path, tmp_path: Path, experts: int, provider: str
) -> None:
    with served(python, tmp_path, experts) as (client, log):
        body = {"prompt": "one two", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        answer = client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 4)
        info = client.get("/server_info").json()
        assert (info["chip"], info["backend"], info["device"]["name"]) == ("demo", "demo", "demo card")
        (report,) = info["ops"].values()
        providers = {choice["op"]: choice["provider"] for choice in report["choices"]}
        assert providers["attention_decode"] == "demo"
        assert providers["rms_norm"] == "reference"
        assert providers["run_experts"] == provider
    assert ("runs the reference (demo: experts % 4 == 0)" in log.read_text()) == (provider == "reference")
