"""`sglk plugins`: what is found, what becomes of it, and that nothing which it imports can do harm."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglk.cli import main
from sglk.commands.plugins import show
from sglk.plugins import probe, probe_process, register_backend
from sglk.plugins.plugin import Plugin
from sglk.plugins.probe import Report, probe_backends
from tests.plugins.distributions import BACKEND, install, install_backend, install_conf, write_metadata

BROKEN = {
    "absent": ("import no_such_vendor_library", "ModuleNotFoundError: No module named 'no_such_vendor_library'"),
    "symbol": ("raise OSError('libk.so: undefined symbol: xpu_init')", "OSError: libk.so: undefined symbol: xpu_init"),
    "leaver": ("raise SystemExit('no licence')", "SystemExit: no licence"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "exiter": (
        "import os\nprint('no card, leaving')\nos._exit(3)",
        "ended with exit code 3 (its last words: no card, le",
    ),
    "crasher": ("import ctypes\nctypes.string_at(0)", "was killed by SIGSEGV"),
    "aborter": (
        "import os\nos.write(2, b'FATAL: no driver\\n')\nos.abort()",
        "SIGABRT (its last words: FATAL: no driver)",
    ),
    "lingerer": (
        f"import atexit, threading\natexit.register(threading.Event().wait)\n{BACKEND.replace('= 1', '= 99')}",
        "was written for version 99 of the DeviceBackend contract and sglk has version 1; upgrade sglk",
    ),
}
"""Name -> code of a plugin, what is said of it."""


HANGER = "import subprocess, threading\nsubprocess.Popen(['sleep', '1000'])\nthreading.Event().wait()"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give torch all the time that it may take here."""
    monkeypatch.setattr(probe, "_START_S", 600.0)


def by_name(reports: list[Report]) -> dict[str, Report]:
    return {report.plugin.name: report for report in reports}


def test_plugins_that_print_or_end_their_process_are_reported_beside_sound_ones(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    for name, (code, _) in BROKEN.items():
        install_backend(site, name, code)
    install_backend(site, "sound", f"print('welcome')\n{BACKEND}    verified_on = 'ten cards'\n")
    register_backend("inline", lambda **_: None)
    reports = by_name(probe_backends(timeout_s=600.0))
    assert set(reports) == {"cpu", "cuda", "kunlun", "sim", "inline", "sound", *BROKEN}
    for name, (_, cause) in BROKEN.items():
        report = reports[name]
        assert report.state == ("refused" if name == "lingerer" else "import failed"), report
        assert cause in str(report.reason)
        assert "\n" not in str(report.reason)
    sound = reports["sound"]
    assert (sound.state, sound.reason, sound.api_version, sound.verified_on) == ("ok", None, 1, "ten cards")
    assert sound.path == f"{site}/dummy_sound/__init__.py"
    assert (reports["lingerer"].api_version, reports["inline"].state) == (99, "ok")
    assert (reports["cpu"].state, reports["cpu"].api_version) == ("ok", 1)


def test_a_plugin_that_hangs_is_ended(site: Path) -> None:
    install_backend(site, "hanger", HANGER)
    hanger = by_name(probe_backends(timeout_s=1.0))["hanger"]
    assert (hanger.state, hanger.path) == ("import failed", str(site))
    assert str(hanger.reason).startswith("its import did not come to an end within 1 s")


def test_who_stops_the_import_of_torch_has_not_broken_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(probe_process, "import_contract", stopped)
    (tmp_path / "questions.json").write_text("[]")
    with pytest.raises(KeyboardInterrupt):
        probe_process.main(tmp_path, 1.0)
    assert not (tmp_path / "done").exists()


def listed(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(entry["kind"], entry["name"]): entry for entry in json.loads(capsys.readouterr().out)}


def test_the_listing_has_everything_that_is_found(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backend(site, "toy")
    install_backend(site, "left_out", "raise AssertionError('imported')")
    write_metadata(site, "rival", "[sglk.backends]\ncpu = dummy_toy:Backend\n")
    install(site, "bare", "", "[sglk.conf]\nbare = dummy_bare\n")
    for name in ("one", "two"):
        install_conf(site, name, {"chip/same.yaml": "{}", f"chip/{name}.yaml": "{}"})
    monkeypatch.setenv("SGLK_PLUGINS", "toy,rival,dummy-rival,dummy.bare,one,two")
    assert main(["plugins", "--json"]) == 1
    entries = listed(capsys)
    toy = entries["backend", "toy"]
    assert {key: toy[key] for key in ("source", "distribution", "version", "state", "api_version", "verified_on")} == {
        "source": "entry point",
        "distribution": "dummy-toy",
        "version": "1.2",
        "state": "ok",
        "api_version": 1,
        "verified_on": None,
    }
    assert entries["backend", "left_out"]["state"] == "refused"
    assert "SGLK_PLUGINS=" in entries["backend", "left_out"]["reason"]
    assert "built-in and dummy-rival 1.2 at" in entries["backend", "cpu"]["reason"]
    assert "promises a `conf` folder" in entries["conf", "bare"]["reason"]
    for name in ("one", "two"):
        assert entries["conf", name]["path"] == f"{site}/dummy_{name}/conf"
        assert (
            f"dummy-one 1.2 at {site} and dummy-two 1.2 at {site} both bring chip/same"
            in entries["conf", name]["reason"]
        )


def test_the_table_shows_where_a_backend_ran_and_why_another_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    place = "/a/path/that/is/long/enough/to/need/more/than/the/line/that/a/pipe/gets" * 2
    toy = Plugin("toy", "sglk.backends", "dummy_toy:Backend", "dummy-toy", "1.2", Path(place))
    show(
        [
            Report(replace(toy, name="cards"), "ok", None, place, 1, "ten cards"),
            Report(replace(toy, name="dry"), "ok", None, place, 1),
            Report(replace(toy, name="model"), "ok", None, place, 1, simulated=True),
            Report(replace(toy, name="broken"), "import failed", "OSError: [no] driver " * 20),
            Report(replace(toy, name="files", group="sglk.conf"), "ok", None, f"{place}/conf"),
        ]
    )
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in printed.splitlines() if line.strip()}
    assert rows["cards"][:7] == ["cards", "backend", "dummy-toy", "1.2", "1", "ten", "cards"]
    assert rows["dry"][5:9] == ["not", "verified", "on", "hardware"]
    assert rows["model"][5:7] == ["simulates", "ok"]
    assert rows["files"][:6] == ["files", "conf", "dummy-toy", "1.2", "-", "-"]
    assert f"broken import failed: {'OSError: [no] driver ' * 20}" in printed
    assert "…" not in printed
    assert place in "".join(printed.split())


def test_an_entry_of_the_allow_list_that_is_nobodys_is_a_warning(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backend(site, "left_out", "raise AssertionError('imported')")
    monkeypatch.setenv("SGLK_PLUGINS", "left_ou")
    assert main(["show", "--yaml"]) == 0
    assert capsys.readouterr().err == (
        "sglk: warning: SGLK_PLUGINS names 'left_ou', which no plugin or distribution is called;"
        " did you mean 'left_out'?\n"
    )


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (
            "raise OSError('libtorch.so: undefined symbol: go')",
            "torch cannot be imported: OSError: libtorch.so: undefined",
        ),
        ("import os\nos._exit(4)", "the process that imports plugins exited with code 4: it printed nothing"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_the_reason_of_all(site: Path, code: str, cause: str) -> None:
    (site / "torch.py").write_text(code)
    install_backend(site, "toy")
    reports = by_name(probe_backends())
    for name in ("cpu", "toy"):
        assert reports[name].state == "import failed"
        assert str(reports[name].reason).startswith(cause)
        assert "log" not in str(reports[name].reason)
    assert reports["toy"].path == str(site)
