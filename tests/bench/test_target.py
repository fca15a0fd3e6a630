import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglk.bench import target as target_module
from sglk.bench.run import measure
from sglk.bench.target import LaunchedServer, ServerRefused, Target, base_url, serve_command, serve_overrides
from sglk.config.bench_schema import LoadConfig, WorkloadConfig
from sglk.errors import RunError
from tests.bench.mock_server import Call, MockServer, Reply


async def nothing(call: Call, reply: Reply) -> None:
    await reply.json({}, 404)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_url_of_the_api_is_as_good_as_that_of_the_server(url: str) -> None:
    assert base_url(url) == "http://h:1"


def test_serving_gets_what_belongs_to_serving() -> None:
    typed = [
        "chip=kunlun",
        "model=/models/x",
        "runtime.page_size=128",
        "server.api_key=k",
        "server.port=8000",
        "server.host=0.0.0.0",
        "workload=chat",
        "++workload=random",
        "+workload.num_requests=4",
        "~bench.slo",
        "++server.port=1",
        "workload.seed=1",
        "bench.url=null",
        "search.space.runtime.page_size=[16,32]",
        "objective=latency",
        "study.name=workload.x",
        "groups='cpu:0'",
    ]
    served = ["chip=kunlun", "model=/models/x", "runtime.page_size=128", "server.api_key=k", "groups='cpu:0'"]
    assert serve_overrides(typed) == served
    command = serve_command(typed, "conf")
    assert command[1:6] == ["-u", "-m", "sglk", "serve", "--config-dir"]
    assert command[-2:] == ["server.host=127.0.0.1", "server.port=0"]


def test_runtime_values_go_to_the_admin_route_with_the_admin_key() -> None:
    async def accept(call: Call, reply: Reply) -> None:
        await reply.json({"runtime": {}})

    with MockServer(nothing) as server:
        server.handlers["/admin/runtime?force=true"] = accept
        Target(server.url, api_key="user", admin_api_key="root").reconfigure({"page_size": 32})
    (call,) = server.calls
    assert (call.method, call.body) == ("POST", {"page_size": 32})
    assert call.headers["authorization"] == "Bearer root"


def test_refused_runtime_values_say_why() -> None:
    async def refuse(call: Call, reply: Reply) -> None:
        await reply.json({"error": {"message": "runtime.page_size=0 is below 1"}}, 400)

    with MockServer(nothing) as server:
        server.handlers["/admin/runtime?force=true"] = refuse
        with pytest.raises(RunError, match=r"refused .*'page_size': 0.*HTTP 400: runtime.page_size=0 is below 1"):
            Target(server.url).reconfigure({"page_size": 0})


def test_flushing_waits_for_requests_that_were_given_up() -> None:
    async def busy_at_first(call: Call, reply: Reply) -> None:
        await reply.json({}, 409 if call.number < 3 else 200)

    with MockServer(nothing) as server:
        server.handlers["/flush_cache"] = busy_at_first
        assert Target(server.url).flush_cache()
        assert len(server.calls) == 4
        del server.handlers["/flush_cache"]
        assert not Target(server.url).flush_cache()


def test_a_missing_key_is_named() -> None:
    async def locked(call: Call, reply: Reply) -> None:
        await reply.json({"error": {"message": "wrong key"}}, 401)

    with MockServer(nothing) as server:
        server.handlers["/v1/models"] = locked
        with pytest.raises(RunError, match=r"HTTP 401: wrong key; set bench.api_key"):
            Target(server.url).models()


# Launched servers: a stand-in for `sglk serve` that keeps to its contract.

SERVER = """
import http.server, json, os, sys, time
print("loading", flush=True)
{trouble}
class Handler(http.server.BaseHTTPRequestHandler):
    log_message = lambda *words: None
    def do_GET(self):
        text = b"{{}}"
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_POST(self):
        if self.path != "/v1/completions":
            return self.send_error(404)
        print("out of memory", flush=True)
        os._exit(9)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("SGLK_READY " + json.dumps({{"url": f"http://127.0.0.1:{{server.server_port}}"}}), flush=True)
server.serve_forever()
"""


def launch(monkeypatch: pytest.MonkeyPatch, log: Path, trouble: str = "", timeout_s: float = 120.0) -> LaunchedServer:
    command = [sys.executable, "-c", SERVER.format(trouble=trouble)]
    monkeypatch.setattr(target_module, "serve_command", lambda overrides, config_dir: command)
    return LaunchedServer([], log=log, timeout_s=timeout_s)


def test_a_launched_server_is_ready_and_ends_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with launch(monkeypatch, tmp_path / "log") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.server_info() is None
        server.check()
    with pytest.raises(RunError, match=r"cannot reach|was killed by SIGTERM"):
        server.models()
    with pytest.raises(RunError, match="the server was killed by SIGTERM"):
        server.check()


def test_a_server_that_dies_under_load_gives_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WorkloadConfig(name="w", kind="random", num_requests=50, input_len=8, output_len=4)
    with (
        launch(monkeypatch, tmp_path / "log") as server,
        pytest.raises(RunError, match=r"the server exited with code 9: out of memory \(log: "),
    ):
        measure(server, workload, LoadConfig())


def test_a_server_that_cannot_start_gives_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = "sys.exit('sglk: error: port 8000 is taken')"
    with pytest.raises(RunError, match=r"the server exited with code 1: sglk: error: port 8000 is taken \(log: "):
        launch(monkeypatch, tmp_path / "log", trouble)


def test_a_server_that_refuses_what_it_was_given_is_no_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = "print('sglk: warning: old'); print('sglk: error: no such model', flush=True); sys.exit(2)"
    with pytest.raises(ServerRefused) as refused:
        launch(monkeypatch, tmp_path / "log", trouble)
    assert str(refused.value) == f"the server refuses to start: no such model (log: {tmp_path / 'log'})"
    assert refused.value.exit_code == 2


def test_a_server_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    # The time is over as soon as the server has told its pid.
    clock = SimpleNamespace(monotonic=lambda: 9.0 if "pid" in log.read_text() else 0.0)
    monkeypatch.setattr("sglk.child.time", clock)
    trouble = "print(f'{os.getpid()} is my pid', flush=True); time.sleep(600)"
    with pytest.raises(RunError, match=r"the server was not ready within 2 s"):
        launch(monkeypatch, log, trouble, timeout_s=2.0)
    pid = int(re.search(r"(\d+) is my pid", log.read_text())[1])  # type: ignore[index]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_contract_of_the_ready_line() -> None:
    from sglk.server import announcement

    line = f"{announcement.READY} {json.dumps({'url': 'http://127.0.0.1:1'})}"
    match = target_module.READY_LINE.search(f"serving x\n{line}\n")
    assert match is not None
    assert json.loads(match.group(1))["url"] == "http://127.0.0.1:1"
