import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sglk.bench.record import Record
from sglk.cli import main
from sglk.testing.tiny import write_tiny_model
from tests.bench.cached_server import CachedServer
from tests.bench.mock_server import Call, MockServer, Reply
from tests.processes import is_alive
from tests.waiting import wait_until

SMALL = ("workload=random", "workload.num_requests=4", "workload.input_len=32", "workload.output_len=8")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def the_record() -> Record:
    (path,) = Path("runs").glob("*.json")
    return Record.load_file(path)


def test_a_running_server_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with CachedServer() as server:
        assert main(["bench", f"bench.url={server.url}/v1", "bench.api_key=secret", *SMALL]) == 0
    shown = capsys.readouterr()
    record = the_record()
    assert "4 requests in" in shown.out
    assert "4 ok, 0 failed, 0 timed out, after 2 for warm-up" in shown.out
    assert "cache flush, 0.0% of prompt tokens from the prefix cache" in shown.out
    for row in ("time to first token", "time per output token", "inter-token latency", "end to end", "output tokens/s"):
        assert row in shown.out
    assert re.search(r"record: runs/\d{8}T\d{6}Z-unknown-mock-random\.json\n", shown.out)
    # Nobody watches a progress bar here.
    assert shown.err == ""
    # The default chip of the configuration says nothing about a server that somebody else started.
    assert (record.chip, record.backend, record.model) == (None, None, "mock")
    assert record.command is not None
    assert "secret" not in record.command
    assert not list(Path("runs").glob("*.log"))


def test_what_the_user_says_of_a_running_server_is_recorded() -> None:
    with CachedServer() as server:
        assert main(["bench", f"bench.url={server.url}", "chip=h100", "bench.output=x/r.json", *SMALL]) == 0
    assert Record.load_file(Path("x/r.json")).chip == "h100"


def test_two_runs_within_a_second_keep_both_records() -> None:
    with CachedServer() as server:
        for _ in range(2):
            main(["bench", f"bench.url={server.url}", *SMALL])
    assert len(list(Path("runs").iterdir())) == 2


def test_too_many_failures_end_with_code_1_and_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(call: Call, reply: Reply) -> None:
        await reply.json({"error": {"message": "the card is gone"}}, 500)

    with MockServer(refuse, {"/v1/models": {"data": [{"id": "mock"}]}}) as server:
        assert main(["bench", f"bench.url={server.url}", *SMALL]) == 1
    shown = capsys.readouterr()
    assert "0 ok, 4 failed, 0 timed out" in shown.out
    assert "latency" not in shown.out
    assert shown.err == (
        "sglk: error: 4 of 4 requests failed, more than bench.max_failure_rate=0.01 allows; "
        "first: HTTP 500: the card is gone\n"
    )
    assert not the_record().valid


def test_a_disk_that_fills_up_costs_the_file_and_not_the_result(
    capsys: pytest.CaptureFixture[str],
    fill_disk: Callable[[int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # The file that tries whether there is room.
    fill_disk(1)
    with CachedServer() as server:
        assert main(["bench", f"bench.url={server.url}", *SMALL]) == 1
    shown = capsys.readouterr()
    assert "output tokens/s" in shown.out
    said = r"sglk: error: cannot write record 'runs/.*': No space left on device; it is kept in '(.*)'\n"
    found = re.fullmatch(said, shown.err)
    assert found is not None, shown.err
    assert Record.load_file(Path(found[1])).counts.completed == 4
    assert not list(Path("runs").iterdir())


def test_what_takes_nothing_costs_no_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with CachedServer() as server:
        words = ["bench", f"bench.url={server.url}", *SMALL, "bench.output=/dev/full"]
        assert main(words) == 1
        (kept,) = tmp_path.glob("sglk-record-*.json")
        assert f"'/dev/full': No space left on device; it is kept in {str(kept)!r}" in capsys.readouterr().err
        assert Record.load_file(kept).valid

        monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
        assert main(words) == 1
    shown = capsys.readouterr()
    assert "output tokens/s" in shown.out
    assert shown.err == "sglk: error: cannot write record '/dev/full': No space left on device\n"


def test_a_reader_who_has_gone_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_reads(record: Record) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("sglk.commands.bench.show", nobody_reads)
    with CachedServer() as server:
        assert main(["bench", f"bench.url={server.url}", *SMALL]) == 141
    assert the_record().valid


def test_a_record_that_cannot_be_written_is_refused_before_the_run(
    capsys: pytest.CaptureFixture[str], fill_disk: Callable[[int], None]
) -> None:
    Path("file").touch()
    with CachedServer() as server:
        for output in ("file/r.json", ".", "/proc/r.json", "x" * 256):
            assert main(["bench", f"bench.url={server.url}", f"bench.output={output}", *SMALL]) == 2
        fill_disk(0)
        assert main(["bench", f"bench.url={server.url}", *SMALL]) == 2
        assert server.calls == []
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 5
    assert "no file can be made in '/proc': No such file or directory; write another bench.output" in error
    assert f"{'x' * 256!r}: File name too long" in error
    assert "cannot write the record to 'runs/record.json': no file can be made in" in error
    assert "cannot write the record to 'file/r.json': '" in error
    assert "it is a folder; write another bench.output" in error


def test_no_server_starts_whose_log_could_not_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/proc")
    assert main(["bench", "chip=cpu", "model=smollm2", f"bench.output={tmp_path / 'r.json'}", *SMALL]) == 2
    assert "cannot write the server's log to 'runs': no file can be made in '/proc'" in capsys.readouterr().err


def interrupted_run(*words: str, number: signal.Signals = signal.SIGINT) -> int:
    """Return the exit code of a run whose process gets a signal after three answers of four."""
    with CachedServer() as server:
        complete = server.answer

        async def answer(call: Call, reply: Reply) -> None:
            if call.number < 3:
                await complete(call, reply)
            else:
                signal.pthread_kill(threading.main_thread().ident or 0, number)
                # Wakes it, should it have been about to wait when the signal came.
                await reply.start()
                await asyncio.Event().wait()

        server.answer = answer
        one_by_one = ("workload.concurrency=1", "workload.warmup_requests=0")
        return main(["bench", f"bench.url={server.url}", *SMALL, *one_by_one, *words])


INTERRUPTED = "sglk: interrupted after 3 of 4 measured requests; "


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_keeps_what_was_answered(capsys: pytest.CaptureFixture[str], number: signal.Signals) -> None:
    assert interrupted_run(number=number) == 130
    record, shown = the_record(), capsys.readouterr()
    assert record.broken_off == "interrupted, with 3 of 4 requests answered"
    assert not record.valid
    assert [request.status for request in record.requests] == ["ok"] * 3
    assert "3 requests in" in shown.out
    assert "warning: the run was broken off (interrupted, with 3 of 4 requests answered): what takes" in shown.out
    (path,) = Path("runs").iterdir()
    assert shown.err == f"{INTERRUPTED}record of what was answered: {path}\n"


def test_a_run_that_was_broken_off_leaves_an_older_record_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    with CachedServer() as server:
        assert main(["bench", f"bench.url={server.url}", *SMALL, "bench.output=x/r.json"]) == 0
    good = Path("x/r.json").read_text()
    for name in ("x/r-broken-off.json", "x/r-broken-off-2.json"):
        capsys.readouterr()
        assert interrupted_run("bench.output=x/r.json") == 130
        told = f"{INTERRUPTED}record of what was answered: {name} (x/r.json is left as it was)\n"
        assert capsys.readouterr().err == told
        assert Record.load_file(Path(name)).broken_off is not None
    assert Path("x/r.json").read_text() == good
    assert interrupted_run("bench.output=x/new.json") == 130
    assert Record.load_file(Path("x/new.json")).broken_off is not None
    assert not Path("runs").exists()


def test_a_second_interruption_hides_no_record_that_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Record.save

    def interrupted_save(record: Record, path: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        save(record, path)

    monkeypatch.setattr(Record, "save", interrupted_save)
    assert interrupted_run() == 130
    (path,) = Path("runs").iterdir()
    assert capsys.readouterr().err == f"{INTERRUPTED}record of what was answered: {path}\n"
    assert the_record().counts.completed == 3


def test_a_full_disk_changes_neither_the_figures_nor_the_code_of_an_interrupted_run(
    capsys: pytest.CaptureFixture[str],
    fill_disk: Callable[[int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # The file that tries whether there is room.
    fill_disk(1)
    assert interrupted_run() == 130
    shown = capsys.readouterr()
    assert "3 requests in" in shown.out
    said = rf"{INTERRUPTED}cannot write record 'runs/.*': No space left on device; it is kept in '(.*)'\n"
    found = re.fullmatch(said, shown.err)
    assert found is not None, shown.err
    assert Record.load_file(Path(found[1])).counts.completed == 3
    assert not list(Path("runs").iterdir())


def test_a_reader_who_has_gone_hides_no_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_reads(record: Record) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("sglk.commands.bench.show", nobody_reads)
    assert interrupted_run() == 141
    (path,) = Path("runs").iterdir()
    assert capsys.readouterr().err == f"{INTERRUPTED}record of what was answered: {path}\n"


def test_an_interrupted_warm_up_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    async def answer(call: Call, reply: Reply) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await reply.start()
        await asyncio.Event().wait()

    with CachedServer() as server:
        server.answer = answer
        assert main(["bench", f"bench.url={server.url}", *SMALL]) == 130
    assert "interrupted after 0 of 2 warm-up requests; no record is kept" in capsys.readouterr().err
    assert not list(Path("runs").glob("*"))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("bench.url=localhost:8000", "bench.url='localhost:8000' does not begin with http"),
        ("bench.url=http://127.0.0.1:9", "cannot reach http://127.0.0.1:9/"),
        ("bench.url=http://127.0.0.1:abc", "'http://127.0.0.1:abc' is not an address such as"),
        ("bench.url='http://[::1'", "'http://[::1' is not an address such as"),
        ("bench.url=http://", "'http://' is not an address such as"),
        ("bench.url='http://a b'", "'http://a b' is not an address such as"),
        ("bench.url='http://xn--zzzzzz--.\u2025/'", "cannot reach"),
        ("bench.api_key='é'", "bench.api_key has signs that no HTTP header can carry"),
        ("server.api_key='é'", "server.api_key has signs that no HTTP header can carry"),
        ("bench.api=grpc", "bench.api"),
        ("workload.kind=poem", "workload.kind"),
        ("groups=[]", "groups=[] names no device; write groups="),
        ("groups=[{devices: cpu:0, chip: nope}]", "device group 'group0': chip=nope is unknown"),
    ],
)
def test_mistakes_are_one_line(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", word, *SMALL]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("runs").exists()


def test_help_names_groups_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "workload=" in shown
    assert "bench.max_failure_rate" in shown


TINY_SERVER = ("runtime.max_total_tokens=2048", "runtime.num_threads=1")


def test_an_engine_is_started_measured_and_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    assert main(["bench", f"model={model}", *TINY_SERVER, *SMALL]) == 0
    record = the_record()
    assert record.valid
    assert (record.chip, record.model, record.engine, record.backend) == ("cpu", "tiny", "native", "cpu")
    assert record.load.url == "launched"
    assert record.runtime is not None
    assert record.runtime["max_total_tokens"] == 2048
    assert record.summary["output_tokens"] == 4 * 8
    assert record.summary["prompt_tokens"] == 4 * 32
    assert record.summary["cached_share"] == 0.0
    assert record.engine_stats["retractions"] == 0
    assert record.engine_stats["generated_tokens"] == 4 * 8
    assert record.server.kv_capacity_tokens == 2048
    assert not any(request.estimated for request in record.requests)
    pid = server_pid()
    assert pid is not None
    assert not is_alive(pid)


def test_what_only_the_server_can_refuse_is_a_mistake_of_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "model=./nothing", *TINY_SERVER, *SMALL]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("sglk: error: the server refuses to start: model.path=nothing: there is no ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_engine_behind(tmp_path: Path, number: signal.Signals) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    endless = ("workload=random", "workload.num_requests=100000", "workload.input_len=32", "workload.output_len=200")
    command = [sys.executable, "-m", "sglk", "bench", f"model={model}", *TINY_SERVER, *endless]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bench:
        wait_until(server_pid)
        pid = server_pid()
        assert pid is not None
        assert is_alive(pid)
        bench.send_signal(number)
        assert bench.wait(120) == 130
        assert bench.stderr is not None
        # The run may have begun.
        assert re.fullmatch(rb"(sglk: interrupted after .*\n)?", bench.stderr.read())
    assert not is_alive(pid)


def server_pid() -> int | None:
    """Pid that the started server has announced, None until it has."""
    texts = [log.read_text() for log in Path("runs").glob("*.log")]
    ready = re.search(r"^SGLK_READY (\{.*\})$", "".join(texts), re.MULTILINE)
    return int(json.loads(ready.group(1))["pid"]) if ready else None
