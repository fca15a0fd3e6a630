"""Launched engines: their start, their end, and what is left of them."""

import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sglk.bench.target import LaunchedServer
from sglk.config.compose import compose
from sglk.config.fleet import ReplicaConfig, alone, replica_configs
from sglk.errors import ConfigError, ModelLoadError, RunError
from sglk.server.gateway import load_gateway
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.launch import launch, launch_all
from sglk.upstream.output import OutputRelay
from sglk.upstream.port import PORTS, free_port
from sglk.upstream.process import UpstreamProcess, last_words
from tests.processes import is_alive
from tests.upstream.stand_ins import client, path_with_stand_in
from tests.waiting import wait_until

VLLM_ENDS = [
    "(Worker pid=9) ERROR 11-29 22:04:39 [multiproc_executor.py:1063] Traceback (most recent call last):",
    "(Worker pid=9) ERROR 11-29 22:04:39 [multiproc_executor.py:1063] ValueError: No common block size for 16",
    "(EngineCore pid=8) ERROR 11-29 22:04:39 [core.py:1510] RuntimeError: Worker failed with error 'No common'",
    "    raise RuntimeError(",
    "RuntimeError: Engine core initialization failed. See root cause above.",
]
"""From a log of vLLM 0.32.0."""


SGLANG_LOSES_ITS_SCHEDULER = [
    "[2026-11-30 23:12:07] Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0",
    "[2026-11-30 23:12:07] Subprocess scheduler_0 (pid=12257) crashed with exit code -9. Triggering SIGQUIT for"
    " cleanup...",
    "[2026-11-30 23:12:07] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    "[2026-11-30 23:12:07] kill_process_tree called: parent_pid=12010, include_parent=True, pid=12010",
]
VLLM_LOSES_ITS_CORE = [
    "(Worker pid=9) INFO 11-30 23:29:28 [multiproc_executor.py:843] Parent process exited, terminating worker queues",
    "(APIServer pid=7) WARNING 11-30 23:29:28 [core_client.py:817] [shutdown] MPClient: engine core exited"
    " unexpectedly; starting cleanup",
    "(APIServer pid=7) ERROR 11-30 23:29:28 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore"
    " encountered an issue. See stack trace (above) for the root cause.",
    "See https://nanobind.readthedocs.io/en/latest/refleaks.html",
]
VLLM_LOSES_A_WORKER = [
    "(EngineCore pid=8) ERROR 11-30 23:29:28 [multiproc_executor.py:316] Worker proc VllmWorker-0 died unexpectedly"
    " (exit code: -11), shutting down executor.",
    "(EngineCore pid=8) ERROR 11-30 23:29:28 [core.py:1510] RuntimeError: cancelled",
]
"""From logs of SGLang 0.5.18 and vLLM 0.32.0, a process of which was killed."""


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplicaConfig:
    monkeypatch.setenv("PYTHONPATH", path_with_stand_in())
    # Nobody listens there: whoever asked it would get no answer.
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    words = ["engine=sglang", "model.package=null", "model.hub_id=org/m", f"engine.logs={tmp_path}", "profiles=none"]
    return alone(compose("serve", words).config)[0]


def test_an_engine_is_ready_with_its_first_token_and_stops_with_its_workers(
    replica: ReplicaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    engine = launch(replica)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()[:2]]
    assert engine.is_alive
    assert all(map(is_alive, pids))
    wait_until(lambda: engine.stats().kv_capacity_tokens == 4096, 120, "its figures are read")
    assert (engine.stats().running_requests, engine.stats().queued_requests) == (2, 1)
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: not engine.is_alive, 120, "its end shows")
    assert (engine.stats().running_requests, engine.stats().kv_capacity_tokens) == (0, 0)
    assert engine.stats().prompt_tokens == 70
    assert "was killed by SIGKILL, as the system does when memory runs out (log: " in str(engine.failure)
    engine.shutdown()
    assert not any(map(is_alive, pids))


def test_an_early_exit_is_told_at_once_with_the_last_words(
    replica: ReplicaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_START", "exit")
    with pytest.raises(RunError) as told:
        launch(replica)
    for part in ("sglang group0/0 exited with code 1", "torch.OutOfMemoryError: 3 GiB are not there", "group0-0.log"):
        assert part in str(told.value)


def test_the_cause_is_told_and_not_its_consequences() -> None:
    said = ["loading", *VLLM_ENDS]
    assert last_words(said, 5) == [
        "ValueError: No common block size for 16",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert last_words(["one", "two"], 1) == ["two"]
    last = "huggingface_hub.errors.HFValidationError: no such model"
    assert last_words(["Traceback (most recent call last):", "  raise", last], 5) == [last]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            SGLANG_LOSES_ITS_SCHEDULER,
            "Subprocess scheduler_0 (pid=12257) crashed with exit code -9, as when the system runs out of memory",
        ),
        (VLLM_LOSES_ITS_CORE, "engine core exited unexpectedly"),
        (VLLM_LOSES_ITS_CORE[2:], "EngineCore encountered an issue"),
        (VLLM_LOSES_A_WORKER, "Worker proc VllmWorker-0 died unexpectedly (exit code: -11)"),
    ],
)
def test_an_engine_that_lost_a_process_of_its_own_has_told_which(said: list[str], told: str) -> None:
    assert last_words(said, 5) == [told]


@pytest.mark.parametrize(
    ("earlier", "said", "told"),
    [
        ("ValueError: one request was wrong", SGLANG_LOSES_ITS_SCHEDULER, "Subprocess scheduler_0 (pid=12257) crashed"),
        ("(APIServer pid=7) ValueError: one request was", VLLM_LOSES_ITS_CORE, "engine core exited unexpectedly"),
        ("(EngineCore pid=8) ValueError: one request was", VLLM_LOSES_A_WORKER, "Worker proc VllmWorker-0 died"),
        (
            "(EngineCore pid=8) ERROR 11-29 22:04:39 [core.py:1510] ValueError: no",
            VLLM_LOSES_ITS_CORE,
            "ValueError: no",
        ),
        ("ValueError: no", ["[2026-11-30 23:12:07] Subprocess a_0 (pid=7) crashed with exit code 1"], "ValueError: no"),
    ],
)
def test_an_exception_before_is_the_cause_only_where_it_may_have_ended_the_process(
    earlier: str, said: list[str], told: str
) -> None:
    assert last_words([earlier, *said], 5)[0].startswith(told)


@pytest.mark.parametrize(
    "prompt",
    [
        "[2026-11-30 23:12:07] Receive: obj=GenerateReqInput(text='Worker proc a died unexpectedly (exit code: -9)')",
        "(APIServer pid=7) INFO 11-30 23:29:28 [logger.py:5] prompt: 'engine core exited unexpectedly'",
        "Subprocess scheduler_0 (pid=12257) crashed with exit code -9",
    ],
)
def test_a_prompt_that_is_logged_is_no_cause(prompt: str) -> None:
    assert last_words([prompt, "IndexError: of which it ends"], 5) == ["IndexError: of which it ends"]
    assert last_words([prompt, "the end"], 1) == ["the end"]


def test_a_port_that_somebody_took_meanwhile_is_exchanged_for_another(
    replica: ReplicaConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        ports = iter([taken, free_port()])
        monkeypatch.setattr("sglk.upstream.launch.free_port", lambda: next(ports))
        engine = launch(replica)
    try:
        assert engine.is_alive
        assert not engine.url.endswith(f":{taken}")
    finally:
        engine.shutdown()
    assert "address already in use" in caplog.text
    assert "it is started again with another port" in caplog.text


def test_a_port_that_the_user_gave_is_not_exchanged(
    replica: ReplicaConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = replace(replica.config, engine=replace(replica.config.engine, dist_init_addr="127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        monkeypatch.setattr("sglk.upstream.launch.free_port", lambda: taken)
        with pytest.raises(RunError, match="address already in use"):
            launch(replace(replica, config=given))
    assert "it is started again with another port" not in caplog.text


@pytest.mark.parametrize(("lines_after", "found"), [(0, True), (4, True), (5, False)])
def test_a_taken_port_is_the_cause_of_an_end_that_comes_soon_after(
    lines_after: int, found: bool, tmp_path: Path
) -> None:
    script = f"print('OSError: [Errno 98] Address already in use', *{lines_after} * ['more'], sep=chr(10))"
    command = UpstreamCommand("sglang", "0.5.18", (sys.executable, "-c", script))
    process = UpstreamProcess(command, log=tmp_path / "a.log", label="a/0")
    process.wait()
    assert process.found_its_port_taken is found


def test_a_timeout_of_the_probe_itself_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(*_: object) -> None:
        raise TimeoutError("of the probe")

    monkeypatch.setattr("sglk.upstream.launch.without_token", probe)
    (found,) = replica_configs(compose("serve", ["groups=[{name: a, url: 'http://127.0.0.1:9'}]", "profiles=none"]))
    cancelled = threading.Event()
    with ThreadPoolExecutor() as pool:
        start = pool.submit(launch, found, cancelled)
        try:
            with pytest.raises(TimeoutError, match="of the probe"):
                start.result(60)
        finally:
            cancelled.set()


def test_ports_are_given_to_one_engine_each() -> None:
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == len(given)
    assert all(port in PORTS for port in given)


def test_an_engine_that_kills_itself_after_an_exception_has_told_its_reason(tmp_path: Path) -> None:
    script = "print('ValueError: the other machine is gone'); print('killing all'); os.kill(os.getpid(), 9)"
    argv = (sys.executable, "-u", "-c", f"import os; {script}")
    process = UpstreamProcess(UpstreamCommand("sglang", "0.5.18", argv), log=tmp_path / "a.log", label="a/0")
    process.wait()
    told = "sglang a/0 was killed by SIGKILL: ValueError: the other machine is gone / killing all (log: "
    assert str(process.why_it_ended()).startswith(told)


@pytest.mark.slow
def test_an_engine_that_never_answers_is_given_up(replica: ReplicaConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_START", "hang")
    impatient = replace(replica.config, engine=replace(replica.config.engine, start_timeout_s=0.5))
    with pytest.raises(RunError, match=r"sglang group0/0 gave no token within engine.start_timeout_s=0.5 s"):
        launch(replace(replica, config=impatient))


@pytest.mark.slow
def test_when_one_of_several_fails_none_is_left(
    replica: ReplicaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    other = replace(replica.config, engine=replace(replica.config.engine, version="0.5.23"))
    with pytest.raises(ConfigError, match=r"the command is made for 0.5.23"):
        launch_all([replica, ReplicaConfig("other/0", replace(replica.group, name="other"), other)])
    started = (tmp_path / "pids").read_text().split()[:2] if (tmp_path / "pids").exists() else []
    assert not any(is_alive(int(pid)) for pid in started)


def test_servers_elsewhere_may_be_missing_but_not_all_of_them(replica: ReplicaConfig) -> None:
    nowhere = replace(replica.group, name="gone", devices=[], url="http://127.0.0.1:9")
    with pytest.raises(RunError, match=r"gone/0: the server at http://127.0.0.1:9 does not generate: .*refused"):
        launch_all([ReplicaConfig("gone/0", nowhere, replica.config)])


def test_another_version_or_none_is_said_before_anything_starts(
    replica: ReplicaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = replace(replica.config, engine=replace(replica.config.engine, version="0.5.23"))
    with pytest.raises(
        ConfigError, match=r"has sglang 0.5.18, the command is made for 0.5.23; write engine.version=0.5.18"
    ):
        launch(replace(replica, config=newer))
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(ConfigError, match=r"sglang is not installed for .*-m pip install sglang==0.5.18"):
        launch(replica)


def test_a_model_that_is_not_there_is_said_before_anything_starts(replica: ReplicaConfig, tmp_path: Path) -> None:
    nowhere = replace(replica.config, model=replace(replica.config.model, path=str(tmp_path / "m")))
    with pytest.raises(ModelLoadError, match=r"model.path=.*: there is no .*; give a folder with config.json or"):
        launch(replace(replica, config=nowhere))
    assert not (tmp_path / "group0-0.log").exists()


def restarts(http: httpx.Client) -> int:
    return sum(each["restarts"] for group in http.get("/admin/groups").json()["groups"] for each in group["replicas"])


def test_nothing_outlives_a_server_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", path_with_stand_in())
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    words = ["engine=sglang", "model=qwen0_5b", f"engine.logs={tmp_path}", "profiles=none"]
    with LaunchedServer(words, log=tmp_path / "serve.log") as server:
        info = server.server_info()
        assert info is not None
        assert (info["engine"], info["versions"]["sglang"]) == ("sglang", "0.5.18")
        assert "sglk tune chip=cpu model=qwen0_5b engine=sglang workload=chat" in server.log.read_text()
        with client(server.url) as http:
            refused = http.post("/v1/completions", json={"prompt": [5, 151936]})
            assert refused.status_code == 400
            assert refused.json()["error"]["message"] == "token id 151936 is outside the vocabulary; use 0 to 151935"
            http.post("/v1/completions", json={"prompt": "die now", "stream": True})
            wait_until(lambda: restarts(http) == 1, 120, "an engine that died is started again")
        pids = [int(pid) for line in (tmp_path / "pids").read_text().splitlines() for pid in line.split()[:2]]
        assert [is_alive(pid) for pid in pids] == [False, False, True, True]
        os.kill(info["pid"], signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), 120, "the engine and its worker end with the server")


@pytest.mark.slow
def test_an_end_does_not_wait_for_an_engine_that_starts_again(
    replica: ReplicaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    leftover = replace(replica.config, runtime=replace(replica.config.runtime, schedule_policy="shortest_prompt_first"))
    given = replace(replica, config=leftover, inherited=frozenset({"schedule_policy"}))
    gateway = load_gateway(replica.config, None, [given])
    try:
        # What it says of its engine is what that was told.
        assert gateway.fleet.configs["group0/0"].config.runtime.schedule_policy == "fcfs"
        gateway.fleet.start()
        monkeypatch.setenv("STAND_IN_START", "hang")
        os.kill(int((tmp_path / "pids").read_text().split()[0]), signal.SIGKILL)
        wait_until(lambda: (tmp_path / "group0-0.log.1").exists(), 120, "it starts again")
    finally:
        gateway.fleet.shutdown()
    wait_until(lambda: "the start of sglang group0/0 was given up" in caplog.text, 120, "it is given up")


def test_what_was_said_long_before_an_end_is_not_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = os.pipe()
    relay = OutputRelay(source, tmp_path / "engine.log", "a/0")
    relay.start()
    relay.forget()
    os.write(sink, b"ValueError: one request was wrong\n")
    wait_until(lambda: relay.said == ["ValueError: one request was wrong"], 120, "it is heard")
    monkeypatch.setattr("sglk.upstream.output.RECENT_S", 0.0)
    relay.forget()
    os.write(sink, b"ValueError: another one was\n")
    wait_until(lambda: relay.said == ["ValueError: another one was"], 120, "it is heard")
    os.write(sink, b"IndexError: of which it ends\n")
    wait_until(lambda: relay.said == ["IndexError: of which it ends"], 120, "it is heard")
    os.close(sink)
    relay.join(120)


def test_output_is_kept_within_bounds_and_passed_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "engine.log"
    source, sink = os.pipe()
    relay = OutputRelay(source, log, "a/0", max_bytes=1000)
    with caplog.at_level("INFO"):
        relay.start()
        for number in range(3):
            os.write(sink, f"line {number}, {'x' * 900}\n".encode())
            line = f"line {number}".encode()
            wait_until(lambda line=line: log.exists() and line in log.read_bytes(), 120, "a line is in the log")
        os.write(sink, b"  0%\r 50%\r100%\nno end of line")
        os.close(sink)
        relay.join(120)
    assert caplog.messages[0].startswith("a/0 | line 0, x")
    assert caplog.messages[-2:] == ["a/0 | 100%", "a/0 | no end of line"]
    assert log.read_bytes().endswith(b"no end of line")
    assert {file.name: file.stat().st_size <= 1000 for file in tmp_path.iterdir()} == {
        "engine.log": True,
        "engine.log.1": True,
    }
