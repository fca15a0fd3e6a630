"""`sglk ops`: what users type, see and get as JSON."""

import json
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from sglk.cli import main
from sglk.commands.words import candidates
from sglk.config.compose import compose
from sglk.operators.remote import RemoteWorkbench
from sglk.testing.tiny import write_tiny_model
from tests.operators import throwaway

Capture = pytest.CaptureFixture[str]
SMALL = ("ops.batch=2", "ops.context=20", "ops.prompt=20", "ops.time_s=0.001")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    return f"model={write_tiny_model(folder, architecture='Qwen3MoeForCausalLM')}"


def as_json(capsys: Capture, *words: str, code: int = 0) -> Any:
    assert main(["ops", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_list_tells_who_runs_what_and_why(model: str, plugin: Path, capsys: Capture) -> None:
    words = ("list", model, "backend=throwaway", "backend.options.broken=raising", "chip.name=cpu", *SMALL)
    document = as_json(capsys, *words)
    assert document["kind"] == "measured"
    linears = {each["traits"]["out_features"]: each for each in document["ops"] if each["op"] == "linear"}
    own, others = linears[320], linears[6]
    assert (own["provider"], own["distribution"], own["reason"]) == (
        "throwaway",
        "throwaway-chip 0.3",
        "first choice of the backend",
    )
    assert others["provider"] == "cpu_kernels"
    assert others["reason"].startswith("throwaway: out_features % 64 == 0")
    assert others["decode"] == [{"calls": 2, "tokens": 2, "bias": False}]
    assert main(["ops", *words]) == 0
    table = capsys.readouterr().out
    assert "throwaway (throwaway-chip 0.3)" in table
    assert "throwaway: out_features % 64 == 0" in table
    assert any(line.startswith("mask_logits") and "on request" in line for line in table.splitlines())


def test_what_the_deny_list_names_falls_back_and_is_marked(model: str, capsys: Capture) -> None:
    denied = "backend.deny.run_experts.reason=slow"
    document = as_json(capsys, "list", "run_experts", model, denied, *SMALL)
    assert [(each["provider"], each["fallback"]) for each in document["ops"]] == [("reference", True)]
    assert document["ops"][0]["reason"] == "cpu_kernels: denied, slow; cpu: denied, slow"
    assert main(["ops", "list", "run_experts", model, denied, "backend.fallback=forbid", *SMALL]) == 0
    assert "backend.fallback=forbid refuses to start" in capsys.readouterr().out


def test_test_passes_on_the_cpu_at_the_shapes_of_a_model(model: str, capsys: Capture) -> None:
    document = as_json(capsys, "test", "attention_*", "route", model, *SMALL)
    assert {each["op"] for each in document["results"]} == {"attention_decode", "attention_prefill", "route"}
    assert {each["outcome"] for each in document["results"] if each["implementation"].startswith("cpu: ")} == {"passed"}
    assert not [each for each in document["results"] if each["outcome"] == "failed"]
    own = [each["shape"] for each in document["results"] if each["source"] == "model"]
    assert {"query_lens": [1, 1], "kv_lens": [20, 20]}.items() <= own[0].items()


def test_a_wrong_op_ends_with_1_and_a_script_where_the_user_wants_it(
    model: str, plugin: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "failures"
    words = ("test", "rope", "silu_and_mul", model, "backend=throwaway", "backend.options.broken=rope")
    assert main(["ops", *words, f"ops.failures={folder}", *SMALL]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("sglk: error: ")
    assert "trials failed: rope\n" in shown.err
    (script,) = folder.iterdir()
    assert f"to see it again: python {script}\n" in shown.out
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "differ by more than" in done.stdout.splitlines()[-1]


def test_whatever_an_op_raises_and_whenever_is_told_of_it_alone(
    model: str, plugin: Path, tmp_path: Path, capsys: Capture
) -> None:
    ops = ("rms_norm", "silu_and_mul")
    words = (*ops, model, "backend=throwaway", "backend.options.broken=ending", f"ops.failures={tmp_path}", *SMALL)
    document = as_json(capsys, "test", *words, code=1)
    told = {(each["op"], each["detail"]) for each in document["results"] if each["outcome"] == "failed"}
    assert told == {
        ("rms_norm", "raises RuntimeError: no handle is left (not at its first call)"),
        ("silu_and_mul", "raises SystemExit: 3"),
    }
    document = as_json(capsys, "bench", *words)  # this model's steps have no silu_and_mul
    reasons = {(each["op"], each["reason"]) for each in document["unmeasured"]}
    assert reasons == {("rms_norm", "throwaway raises RuntimeError: no handle is left")}


@pytest.mark.parametrize("verb", ["test", "bench"])
def test_what_ops_print_is_not_in_the_document(verb: str, model: str, plugin: Path, capsys: Capture) -> None:
    words = (verb, "rms_norm", model, "backend=throwaway", "backend.options.broken=loud", *SMALL, "--json")
    assert main(["ops", *words]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["backend"] == "throwaway"
    assert "a kernel speaks\n" in printed.err


def test_a_folder_that_cannot_be_written_costs_the_scripts_alone(
    model: str, plugin: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("")
    folder = f"ops.failures={tmp_path / 'file' / 'below'}"
    assert main(["ops", "test", "rope", model, "backend=throwaway", folder, *SMALL]) == 0
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("sglk: warning: cannot write to ops.failures=")
    words = ("test", "rope", model, "backend=throwaway", "backend.options.broken=rope")
    assert main(["ops", *words, folder, *SMALL]) == 1
    shown = capsys.readouterr()
    assert "failed" in shown.out
    assert "to see it again" not in shown.out
    assert shown.err.splitlines()[-1].endswith("trials failed: rope")


def test_bench_orders_by_share_and_adds_up(model: str, capsys: Capture) -> None:
    document = as_json(capsys, "bench", model, "chip.bandwidth_gb_s=50", "chip.peak_tflops={fp32:0.5}", *SMALL)
    for step in ("decode", "prefill"):
        rows = document[step]
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert [row["share"] for row in rows] == sorted((row["share"] for row in rows), reverse=True)
        assert all(row["total_s"] == pytest.approx(row["calls"] * row["timed"]["timing"]["median_s"]) for row in rows)
    experts = next(row for row in document["decode"] if row["timed"]["op"] == "run_experts")
    assert experts["calls"] == 2
    assert experts["timed"]["limit"] == "memory"
    # 50 GB/s is the roof.
    assert experts["timed"]["peak"] == pytest.approx(experts["timed"]["gb_s"] / 50)
    assert document["unmeasured"] == []
    assert main(["ops", "bench", "rope", model, *SMALL]) == 0
    assert "ms in the ops named" in capsys.readouterr().out


def test_a_chip_without_its_hardware_can_be_imagined(model: str, capsys: Capture) -> None:
    words = ("chip=kunlun", "model=qwen32b", "runtime.quantization=w8a8")
    assert main(["ops", "bench", *words]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "backend=sim" in message
    document = as_json(capsys, "bench", *words, "backend=sim", "ops.batch=4")
    assert document["kind"] == "simulated"
    hottest = document["decode"][0]["timed"]
    assert (hottest["op"], hottest["shape"]["out_features"], hottest["limit"]) == (
        "linear_w8a8",
        27648,
        "memory",
    )  # of two cards
    assert 0.7 < hottest["peak"] <= 0.8
    assert main(["ops", "list", *words, "backend=sim", "groups=[{url: 'http://a:1'}]"]) == 2
    assert "is a server elsewhere, whose ops cannot be looked at" in capsys.readouterr().err
    tiny = ("chip=kunlun", model, "runtime.quantization=w8a8", "backend=sim", *SMALL)
    assert main(["ops", "test", "linear_w8a8", *tiny]) == 0
    assert "simulated: no value and no time is of real hardware" in capsys.readouterr().out


@pytest.mark.slow
def test_a_kernel_that_ends_its_process_is_told_of_and_the_others_are_tried(
    model: str, plugin: Path, tmp_path: Path, capsys: Capture
) -> None:
    ops, broken = ("rope", "add_rms_norm", "silu_and_mul", "route"), "backend.options.broken=crashing"
    words = (*ops, model, "backend=throwaway", broken, f"ops.failures={tmp_path}", *SMALL)
    document = as_json(capsys, "test", *words, code=1)
    ends: dict[str, list[str]] = {}
    for each in document["results"]:
        if each["implementation"].startswith("throwaway: "):
            ends.setdefault(each["op"], []).append(each["outcome"])
    # What has ended one process does not get another.
    assert {op: [own.count(each) for each in ("failed", "passed")] for op, own in ends.items()} == {
        "rope": [1, 0],
        "add_rms_norm": [1, 0],
        "silu_and_mul": [1, 0],
    }
    assert not [each for each in document["results"] if each["op"] == "route" and each["outcome"] != "passed"]
    told = {each["op"]: each["detail"] for each in document["results"] if each["outcome"] == "failed"}
    assert told["rope"].startswith("ends its process, which was killed by SIGSEGV: Fatal Python error: ")
    assert f"{throwaway.MODULE}.py" in told["rope"]
    assert told["rope"].endswith(" in crashes")
    memory = (
        "ends its process, which was killed by SIGKILL, as the system does when memory runs out: it printed nothing"
    )
    assert told["silu_and_mul"] == memory
    assert told["add_rms_norm"] == "ends its process, which exited with code 7: no licence for this kernel"
    assert len(document["scripts"]) == 3
    assert main(["ops", "bench", *words]) == 1
    printed = capsys.readouterr()
    assert "rope was not timed at one shape: throwaway ends its process, which was killed by SIGSEGV" in printed.err
    lost = "not timed, as they end their process, ruin the device or do not come back: rope, add_rms_norm"
    assert printed.err.splitlines()[-1] == f"sglk: error: {lost}"
    assert "route " in printed.out


@pytest.mark.slow
def test_a_device_that_an_op_has_ruined_is_opened_anew_for_the_others(
    model: str, plugin: Path, tmp_path: Path, capsys: Capture
) -> None:
    broken = ("backend=throwaway", "backend.options.broken=ruining", f"ops.failures={tmp_path}")
    words = ("add_rms_norm", "rope", "silu_and_mul", model, *broken, *SMALL)
    document = as_json(capsys, "test", *words, code=1)
    own = [each for each in document["results"] if each["implementation"].startswith("throwaway: ")]
    assert [each["outcome"] for each in own] == ["failed", *["skipped"] * (len(own) - 1)]
    ruin = "RuntimeError: device-side assert triggered"
    assert own[0]["detail"] == f"raises {ruin}; it leaves a device that no longer works: copy() raises {ruin}"
    assert {each["outcome"] for each in document["results"] if each not in own} <= {"passed", "skipped"}
    assert main(["ops", "bench", *words]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("ruin the device or do not come back: add_rms_norm")


@pytest.mark.slow
@pytest.mark.parametrize(("busy", "fds"), [(2, True), (1000, True), (0, False)])
def test_ops_that_get_no_device_any_more_have_not_failed(
    model: str,
    plugin: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    busy: int,
    fds: bool,
) -> None:
    """The device is busy at its first try to be opened again, or at all; or this process has no room for another."""
    opened: list[bool] = []

    def pipe() -> tuple[Connection, Connection]:
        opened.append(True)
        if not fds and len(opened) > 1:
            raise OSError(24, "Too many open files")
        return Pipe()

    monkeypatch.setattr("sglk.operators.remote.Pipe", pipe)
    options = (f"backend.options.begun={tmp_path / 'begun'}", f"backend.options.busy={busy}")
    broken = ("backend=throwaway", "backend.options.broken=crashing", f"ops.failures={tmp_path}", *options)
    words = ("rope", "route", model, *broken, *SMALL)
    assert main(["ops", "test", *words, "--json"]) == 1
    printed = capsys.readouterr()
    results = json.loads(printed.out)["results"]
    assert [each["op"] for each in results if each["outcome"] == "failed"] == ["rope"]
    last = printed.err.splitlines()[-1]
    assert last.startswith(f"sglk: error: 1 of {len(results)} trials failed: rope")
    again = [each["detail"] for each in results if str(each["detail"]).startswith("not tried: the device cannot be")]
    if busy == 2:
        assert (again, len(opened)) == ([], 3)
        assert last.endswith("failed: rope")
        return
    assert again
    assert len(opened) == 3
    assert f"; not all were made, as {again[0].removeprefix('not tried: ')}" in last
    assert ("device is busy" if fds else "Too many open files") in last


@pytest.mark.slow
def test_who_times_ops_is_told_once_of_a_device_that_is_gone(
    model: str, plugin: Path, tmp_path: Path, capsys: Capture
) -> None:
    options = (f"backend.options.begun={tmp_path / 'begun'}", "backend.options.busy=1000")
    words = ("rope", "route", model, "backend=throwaway", "backend.options.broken=crashing", *options, *SMALL)
    assert main(["ops", "bench", *words]) == 1
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if "device is busy" in line] == told[-1:]
    assert "not all were timed, as the device cannot be opened again: " in told[-1]


@pytest.mark.parametrize("verb", ["list", "test", "bench"])
def test_a_plugin_that_ends_its_process_while_its_ops_are_looked_at_is_named(
    model: str, plugin: Path, capsys: Capture, verb: str
) -> None:
    assert main(["ops", verb, model, "backend=throwaway", "backend.options.broken=refusing", *SMALL]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert f"backend 'throwaway' (throwaway-chip 0.3 at {plugin}) lets nobody look at its ops: ends its process" in told


def test_what_ops_print_takes_no_more_room_than_one_answer(
    model: str, plugin: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = [model, "backend=throwaway", "backend.options.broken=shouting", *SMALL]
    with RemoteWorkbench(compose("ops", words).config) as bench:
        (log,) = tmp_path.glob("sglk-ops-*/log")
        ops = ("rms_norm",)
        trials = enumerate(bench.ask("trials", ops))
        loud = [number for number, trial in trials if trial.implementation.startswith("throwaway: ")]
        for number in loud[:3]:
            capsys.readouterr()
            assert bench.ask("problem", ops, number) is None
            assert log.stat().st_size == 0
            said = capsys.readouterr().err
            left_out, shown = said.splitlines()
            assert left_out.endswith(" bytes are left out")
            assert set(shown) == {"x"}
            assert len(said) < 70_000


@pytest.mark.slow
def test_a_kernel_that_hangs_is_told_of_and_the_others_are_tried(
    model: str, plugin: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, waited = tmp_path / "begun", Connection.poll

    def out_of_patience(connection: Connection, timeout: float) -> bool:
        """Wait as long as it takes, but for the op that never comes back."""
        assert timeout >= 600
        while not waited(connection, 0.05):
            if begun.exists():
                begun.unlink()
                return False
        return True

    monkeypatch.setattr(Connection, "poll", out_of_patience)
    broken = ("backend.options.broken=hanging", f"backend.options.begun={begun}")
    words = ("route", "rope", model, "backend=throwaway", *broken, f"ops.failures={tmp_path / 'failures'}", *SMALL)
    document = as_json(capsys, "test", *words, code=1)
    own = [each for each in document["results"] if each["implementation"].startswith("throwaway: ")]
    assert [each["outcome"] for each in own] == ["failed", *["skipped"] * (len(own) - 1)]
    assert own[0]["detail"] == "does not come back within ops.timeout_s=600"
    assert own[1]["detail"] == "not tried any more: does not come back within ops.timeout_s=600"
    assert {each["outcome"] for each in document["results"] if each["op"] == "rope"} == {"passed"}
    document = as_json(capsys, "bench", *words, code=1)
    assert [each["op"] for each in document["unmeasured"] if each["lost"]] == ["route"] * len(document["unmeasured"])
    assert "rope" in {row["timed"]["op"] for row in document["decode"]}


def test_a_backend_that_ends_its_process_is_named_with_its_distribution(
    model: str, plugin: Path, capsys: Capture
) -> None:
    assert main(["ops", "list", model, "backend=throwaway", "backend.options.broken=opening", *SMALL]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    start = f"sglk: error: backend 'throwaway' (throwaway-chip 0.3 at {plugin}) does not open its device: "
    assert told.startswith(f"{start}ends its process, which was killed by SIGSEGV: Fatal Python error: ")


def test_one_card_is_enough_to_look_at_the_part_of_one_of_several(model: str, plugin: Path, capsys: Capture) -> None:
    words = (model, "backend=throwaway", "runtime.tp_size=2")
    document = as_json(capsys, "list", "attention_decode", *words, *SMALL)
    assert document["ops"][0]["traits"]["heads"] == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "say what to do with ops; write one of list, test, bench"),
        (("lst",), "does not know 'lst'; did you mean 'list'?"),
        (("list", "atention_decode"), "op 'atention_decode' is unknown; did you mean 'attention_decode'?"),
        (("list", "z*"), "op 'z*' is unknown; ops: add_gated,"),
        (("list", "chip"), "write chip=VALUE"),
        (("list", "ops.batch=0"), "ops.batch=0 is too small"),
        (("list", "ops.bach=1"), "did you mean 'ops.batch'?"),
        (("bench", "ops.time_s=0"), "ops.time_s=0 is not a positive number"),
        (("list", "--jsn"), "--jsn"),
    ],
)
def test_mistakes_are_one_line_with_a_way_out(words: tuple[str, ...], part: str, capsys: Capture) -> None:
    assert main(["ops", *words]) == 2
    message = capsys.readouterr().err
    assert part in message
    assert message.count("\n") == 1


def test_ops_that_a_model_does_not_call_are_said_to_be_none(model: str, capsys: Capture) -> None:
    for verb, part in (("list", "has none of add_gated"), ("bench", "calls none of add_gated")):
        assert main(["ops", verb, "add_gated", model, *SMALL]) == 2
        assert part in capsys.readouterr().err


def test_help_names_verbs_options_and_examples(capsys: Capture) -> None:
    assert main(["ops", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: sglk ops list|test|bench [OP ...]")
    assert "ops.context" in text
    assert "sglk ops bench" in text


def test_verbs_ops_and_keys_are_completed() -> None:
    assert candidates(["ops", "t"]) == ["test"]
    assert {"list", "test", "bench", "chip="} <= set(candidates(["ops", ""]))
    assert candidates(["ops", "test", "attention_"]) == ["attention_decode", "attention_prefill"]
    assert candidates(["ops", "bench", "ops.ba"]) == ["ops.batch="]
    assert "--json" in candidates(["ops", "list", "--"])
