"""`sglk doctor` on this machine, with plugins that are sound and such that are not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglk.cli import main
from sglk.commands.doctor import deployment, what_to_examine
from sglk.commands.flags import CommonFlags
from sglk.commands.words import candidates
from sglk.doctor.backends import check_backends
from sglk.doctor.children import ask
from sglk.doctor.machine import this_machine
from sglk.errors import ConfigError, RunError
from tests.plugins.distributions import BACKEND, install_backend
from tests.plugins.libraries import MODULE_INIT, damaged_library


def findings(document: dict[str, Any], check: str) -> list[tuple[str, str]]:
    return [(each["status"], each["why"]) for each in document["findings"] if each["check"] == check]


def test_what_is_wrong_with_this_machine(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_backend(site, "sound")
    library = damaged_library(site / "dummy_sound", MODULE_INIT, b"PyModuleDef_Gone")
    install_backend(site, "leaver", "raise SystemExit('no licence')")
    install_backend(site, "future", BACKEND.replace("= 1", "= 99"))
    for name in ("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    code = main(["doctor", "chip=cpu", "server.port=0", "--json"])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (code, printed.err) == (1, "")
    assert list(document) == ["schema_version", "sglk", "chip", "backend", "model", "findings", "counts"]
    assert all(list(each) == ["check", "status", "why", "todo"] for each in document["findings"])
    assert not any("\n" in each["why"] + each["todo"] for each in document["findings"])
    assert not any("this check failed" in each["why"] for each in document["findings"])
    statuses = [each["status"] for each in document["findings"]]
    assert document["counts"] == {status: statuses.count(status) for status in ("ok", "warn", "fail")}
    assert all(each["todo"] for each in document["findings"] if each["status"] != "ok")

    plugins = dict(why_and_status[::-1] for why_and_status in findings(document, "plugins"))
    assert sorted(plugins.values()) == ["fail", "fail", "ok"]
    assert any("SystemExit: no licence" in why and "dummy-leaver 1.2 at" in why for why in plugins)
    assert any("written for version 99" in why for why in plugins)
    ((status, why),) = findings(document, "native libraries")
    assert (status, why) == ("fail", f"OSError: {library}: undefined symbol: PyModuleDef_Gone")
    assert ("ok", "cuda: not available to torch (Torch not compiled with CUDA enabled)") in findings(document, "torch")
    assert ("ok", "CUDA_HOME is set but empty; of no effect here, it can be unset") in findings(document, "CUDA_HOME")
    assert findings(document, "device memory")[0][1].startswith("cpu:0 (")


PICKY = """
import os

from sglk.backends.cpu import CpuBackend
from sglk.backends.finding import warn

class Backend(CpuBackend):
    api_version = 1
    requires = {"python": ">=3.8", "dummy-sdk": ">=2"}

    @classmethod
    def installed_versions(cls):
        raise OSError("libvendor.so: cannot open shared object file")

    @classmethod
    def diagnose(cls):
        flags = f"{os.environ['DUMMY_FLAG']} {os.environ['DUMMY_OTHER']}"
        yield warn("licence", f"it ends tomorrow {flags}", "buy another")
"""


def test_a_plugin_says_what_it_needs_and_finds(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_backend(site, "picky", PICKY)
    monkeypatch.setenv("DUMMY_OTHER", "2")
    wanted = deployment(["backend=picky", "+backend.environment={DUMMY_FLAG: '1', DUMMY_OTHER: '1'}"])
    found = [(each.check, each.status, each.why) for each in check_backends(this_machine(), wanted)]
    assert found[0][:2] == ("backend", "ok")
    assert found[1:] == [
        ("licence", "warn", "it ends tomorrow 1 2"),
        (
            "backend",
            "warn",
            "backend 'picky' cannot tell its versions: OSError: libvendor.so: cannot open shared object file",
        ),
        ("environment", "warn", "DUMMY_OTHER=2 is set, backend 'picky' wants 1"),
        ("environment", "ok", "`sglk serve` sets, where they are not set: DUMMY_FLAG=1 DUMMY_OTHER=1"),
        ("picky needs", "ok", f"python >=3.8; {sys.version.split()[0]} is installed"),
        ("picky needs", "fail", "dummy-sdk >=2, which is not here"),
    ]


MADE = (
    BACKEND.replace("class Backend", "class Made")
    + """
def Backend(**options):
    return Made(**options)
"""
)


@pytest.mark.parametrize("code", [BACKEND, MADE])
def test_what_a_plugin_does_not_say_of_itself_is_not_taken_from_its_base(site: Path, code: str) -> None:
    install_backend(site, "silent", code)
    found = list(check_backends(this_machine(), deployment(["backend=silent"])))
    assert found[0].why.endswith("(not verified on hardware)")
    assert [each.why for each in found if each.status != "ok"] == []


CRASHES = (
    BACKEND
    + """
    def allocate(self, shape, dtype):
        import os
        os.write(2, b"FATAL: card 0 is gone\\n")
        os.abort()
"""
)


def test_a_device_that_ends_its_process_is_a_finding(site: Path) -> None:
    install_backend(site, "fatal", CRASHES)
    last = list(check_backends(this_machine(), deployment(["backend=fatal"])))[-1]
    assert (last.check, last.status) == ("device", "fail")
    assert "was killed by SIGABRT: FATAL: card 0 is gone" in last.why


def test_a_child_that_does_not_answer_is_ended() -> None:
    with pytest.raises(RunError) as caught:
        ask("torch_build", timeout_s=0.05)
    assert str(caught.value) == "the check's process was not done within 0.05 s; its last words: nothing"


def test_what_is_typed_wrong_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "chip=kunlum"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "did you mean 'kunlun'?" in printed.err


def test_an_installation_that_composes_nothing_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ConfigError("conf/serve.yaml is not UTF-8 text")

    monkeypatch.setattr("sglk.commands.doctor.deployment", broken)
    nothing, (finding,) = what_to_examine(CommonFlags())
    assert nothing is None
    assert (finding.check, finding.status, finding.why) == (
        "configuration",
        "fail",
        "conf/serve.yaml is not UTF-8 text",
    )
    with pytest.raises(ConfigError):
        what_to_examine(CommonFlags(arguments=["chip=cpu"]))


def test_it_completes_what_serve_takes() -> None:
    assert candidates(["doctor", "--j"]) == ["--json"]
    assert candidates(["doctor", "chip=h1"]) == ["chip=h100"]


def test_the_doctor_itself_stays_without_torch() -> None:
    code = "import sys, sglk.commands.doctor, sglk.doctor.checks; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
