"""`sglk calibrate` as it is typed, and what `sglk plan` makes of it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglk.cli import main
from sglk.commands.calibrate_serving import ServingRuns
from sglk.errors import RunError
from sglk.planner.calibration.record import ServingRecord, read
from sglk.testing.tiny import write_tiny_model

SMALL = ("calibrate.repeats=1", "calibrate.context_length=128", "runtime.max_total_tokens=1024")
SIM = ("chip=h100", "backend=sim", *SMALL)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_tiny_model(tmp_path / "tiny", hidden_size=128)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_calibration_is_written_told_and_picked_up_by_a_plan(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "calibrate", *SIM, f"model={model}")
    assert code == 0
    (path,) = Path("calibration").iterdir()
    assert f"calibration: {path}" in out
    assert "simulated: tiny on NVIDIA H100" in out
    assert "cross-validated error of a step: median 0." in out
    assert re.search(r"products of many tokens reach [\d.]+ TFLOPS, \d+% of the chip's 989.4", out)
    # Nobody watches, so a line says what is going on.
    assert err.splitlines() == ["sglk: loading tiny on h100", "sglk: measuring steps"]
    document = json.loads(path.read_text())
    assert document["entries"][0]["kind"] == "simulated"
    assert document["entries"][0]["serving"] is None

    words = ("plan", "chip=h100", f"model={model}", "backend=sim", "profiles=none", "plan.context_length=128")
    plans = [json.loads(run(capsys, *words, "--json", *more)[1]) for more in ((), ("calibration=none",))]
    calibrated, roofline = (plan["replicas"][0]["speed"] for plan in plans)
    assert calibrated["kind"] == roofline["kind"] == "estimated"
    assert calibrated["basis"]["name"] == str(path)
    assert calibrated["basis"]["error"] == document["entries"][0]["error"]["median"]
    assert roofline["basis"]["kind"] == "roofline"
    for time in ("ttft_s", "tpot_alone_s", "tpot_together_s"):
        assert calibrated[time] == pytest.approx(roofline[time], rel=0.05)
    out = run(capsys, *words)[1]
    assert "estimated speed" in out
    assert f"from {path}, simulated, median error of a step" in out


def test_models_are_kept_side_by_side(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_tiny_model(model.parent / "other", hidden_size=192)
    for words in ((f"model={model}",), (f"model={other}",), (f"model={model}", "runtime.kv_cache_dtype=fp8_e4m3")):
        assert run(capsys, "calibrate", *SIM, *words)[0] == 0
    (path,) = Path("calibration").iterdir()
    entries = json.loads(path.read_text())["entries"]
    assert [(each["model"], each["kv_cache_dtype"]) for each in entries] == [
        ("tiny", "bf16"),
        ("other", "bf16"),
        ("tiny", "fp8_e4m3"),
    ]


def test_a_plan_without_figures_says_how_to_get_them(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", "chip=cpu", f"model={model}", "profiles=none", "plan.context_length=128")
    assert code == 0
    assert "no speed: chip 'cpu' states no bandwidth_gb_s and no peak_tflops" in out
    assert "run `sglk calibrate chip=cpu`" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("runtime.dtype=fp99",), "runtime.dtype=fp99 is not allowed; allowed: auto, fp32, bf16, fp16"),
        (("calibrate.repeats=0",), "calibrate.repeats=0 is too small; it is at least 1"),
        (("calibrate.context_length=1",), "calibrate.context_length=1 is too small; it is at least 64"),
        (("calibrate.time_s=0",), "calibrate.time_s=0 is not a positive number"),
        (("calibrate.folder=''",), "calibrate.folder is empty"),
        (("calibrate.folder=tiny/config.json",), "cannot write to calibrate.folder=tiny/config.json"),
        (("groups='sim:0;sim:1'",), "groups has 2 device groups; calibrate one chip at a time"),
        (("groups=[{url: 'http://a:1'}]",), "is a server elsewhere, which cannot be calibrated; leave out groups"),
        (("runtime.device_memory_gib=0.00001", "runtime.max_total_tokens=null"), "weights take"),
        (("workload=chat",), "workload"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    words: tuple[str, ...], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "calibrate", *SIM, f"model={model}", *words)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("sglk: error")]
    assert message in line
    assert not Path("calibration").exists()


def test_a_missing_library_is_named_before_anything_is_measured(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    code, _, err = run(capsys, "calibrate", *SIM, f"model={model}")
    assert (code, err) == (2, "sglk: error: `sglk calibrate` needs scipy; pip install 'sglk[calibrate]'\n")


def test_a_damaged_file_is_not_overwritten(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("calibrate", *SIM, f"model={model}")
    run(capsys, *words)
    (path,) = Path("calibration").iterdir()
    path.write_text("{")
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "is no calibration" in err
    assert "measuring" not in err
    assert path.read_text() == "{"


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_calibration_leaves_no_file(model: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "sglk", "calibrate", "chip=cpu", f"model={model}", "calibrate.repeats=100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = [next(process.stderr), next(process.stderr)]
        assert "measuring steps" in said[1]
        process.send_signal(number)
        _, rest = process.communicate(timeout=120)
    assert process.returncode == 130
    # A signal that comes in the middle of a write has Python write the same once more.
    lines = [line for line in rest.splitlines(keepends=True) if line != said[1]]
    assert lines == ["sglk: interrupted while measuring steps; what was not measured whole is not kept\n"]
    assert not Path("calibration").exists()


CPU = ("chip=cpu", *SMALL, "runtime.max_running_requests=2")


def test_what_ends_while_it_serves_costs_no_older_calibration(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, failures = ("calibrate", *CPU, f"model={model}"), [KeyboardInterrupt(), RunError("no server")]

    def fail(*_: object) -> ServingRecord:
        raise failures.pop(0)

    monkeypatch.setattr(ServingRuns, "measure", fail)
    code, _, err = run(capsys, *words)
    assert (code, err.splitlines()[-1]) == (130, "sglk: interrupted while measuring steps; the steps are kept")
    (path,) = Path("calibration").iterdir()
    before = read(path)
    assert [each.serving for each in before.entries] == [None]

    before.entries[0].serving = ServingRecord(arrival_s=0.001)
    before.save(path)
    code, _, err = run(capsys, *words)
    assert (code, err.splitlines()[-1]) == (
        1,
        "sglk: error: the older calibration stays; what serving adds was not measured: no server",
    )
    assert read(path) == before

    monkeypatch.setattr(ServingRuns, "measure", lambda *_: ServingRecord(arrival_s=0.002))
    assert run(capsys, *words)[0] == 0
    assert [each.serving for each in read(path).entries] == [ServingRecord(arrival_s=0.002)]


def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fill_disk: Callable[[int], None],
) -> None:
    monkeypatch.setattr("sglk.commands.calibrate.measure_model", lambda *_: pytest.fail("was measured"))
    words = ("calibrate", *SIM, f"model={model}")
    code, _, err = run(capsys, *words, "calibrate.folder=/proc/x")
    said = "cannot write to calibrate.folder=/proc/x: no file can be made in '/proc': No such file or directory"
    assert (code, err) == (2, f"sglk: error: {said}; write another folder\n")
    fill_disk(0)
    code, _, err = run(capsys, *words)
    assert (code, "No space left on device; write another folder" in err) == (2, True)
    assert not Path("calibration").exists()


def test_a_disk_that_fills_up_costs_the_file_and_not_the_result(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    fill_disk: Callable[[int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # The file that tries whether there is room.
    fill_disk(1)
    code, out, err = run(capsys, "calibrate", *SIM, f"model={model}")
    assert (code, "cross-validated error of a step" in out) == (1, True)
    said = "sglk: error: cannot write the calibration to '.*': No space left on device; it is kept in '(.*)'"
    found = re.fullmatch(said, err.splitlines()[-1])
    assert found is not None, err
    assert len(read(Path(found[1])).entries) == 1
    assert list(Path("calibration").iterdir()) == []


def test_a_reader_who_has_gone_costs_nothing(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_reads(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("sglk.commands.calibrate.print_calibration", nobody_reads)
    assert run(capsys, "calibrate", *SIM, f"model={model}")[0] == 141
    (path,) = Path("calibration").iterdir()
    assert read(path).entries


def test_words_are_completed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "completion", "--words", "cali")[1].split() == ["calibrate"]
    assert "calibrate.repeats=" in run(capsys, "completion", "--words", "calibrate", "calibrate.")[1]
    assert run(capsys, "calibrate", "--help")[0] == 0


@pytest.mark.slow
def test_a_served_model_is_calibrated_with_what_serving_adds(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: tuple[Any, ...] = ("chip=cpu", f"model={model}", *SMALL, "runtime.max_running_requests=2")
    code, out, err = run(capsys, "calibrate", *words)
    assert (code, "serving adds" in out) == (0, True)
    assert "sglk: serving 1 and 2 requests at a time" in err
    (path,) = Path("calibration").iterdir()
    entry = json.loads(path.read_text())["entries"][0]
    assert entry["kind"] == "measured"
    assert entry["serving"]["arrival_s"] > 0
    points = entry["serving"]["points"]
    assert [point["rows"] for point in points] == [1, 2]
    # How long they are is the affair of a machine that may be busy.
    assert all(point["loop_s"] is not None and point["gap_s"] > 0 for point in points)
