"""Two groups of an engine behind one entry, one of which hangs: what each API tells, and who answers meanwhile."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglk.bench.target import LaunchedServer
from sglk.testing.tiny import CHATML, write_tiny_model
from tests.upstream.real.engines import OWN, descendants, served
from tests.upstream.stand_ins import client
from tests.waiting import wait_until

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(900)]

GROUPS = "groups=[{name: a, devices: ['cpu:0'], weight: 80}, {name: b, devices: ['cpu:1'], weight: 20}]"

HI = [{"role": "user", "content": "hi"}]
STREAMS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/completions": ({"prompt": "hi", "max_tokens": 8}, "data: [DONE]"),
    "/v1/chat/completions": ({"messages": HI, "max_tokens": 8}, "data: [DONE]"),
    "/v1/messages": ({"messages": HI, "max_tokens": 8}, '"type":"message_stop"'),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 8}, '"type":"response.completed"'),
}
"""Requests by their routes, and what stands in the last event of their answers."""

MISSING = {"sglang": {"/v1/responses"}, "vllm": set[str]()}
"""What an engine has not as it is installed here."""


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedServer]:
    folder = tmp_path_factory.mktemp(engine)
    shape = {"head_dim": 64, "hidden_size": 256, "intermediate_size": 512}
    model = write_tiny_model(folder / "tiny", chat_template=CHATML, **shape)
    more = (GROUPS, "router.step_timeout_s=15", "router.restart_wait_s=0.1", *OWN[engine])
    with served(engine, model, folder, *more) as server:
        yield server


def replicas(http: httpx.Client) -> list[dict[str, Any]]:
    return [each for group in http.get("/admin/groups").json()["groups"] for each in group["replicas"]]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_the_streams_of_all_apis_come_whole(engine: str, server: LaunchedServer) -> None:
    with client(server.url) as http:
        for path in STREAMS.keys() - MISSING[engine]:
            body, last = STREAMS[path]
            answer = http.post(path, json={"model": "tiny", "stream": True, "temperature": 0.0, **body})
            assert answer.status_code == 200, answer.text
            assert last in answer.text.rstrip().splitlines()[-1]
        assert [set(each["ended"]) <= {"completed"} for each in replicas(http)] == [True, True]


def test_a_token_that_there_is_not_ends_no_engine(server: LaunchedServer) -> None:
    with client(server.url) as http:
        assert http.post("/v1/completions", json={"model": "tiny", "prompt": [320]}).status_code == 400
        assert http.post("/v1/completions", json={"model": "tiny", "prompt": [319], "max_tokens": 1}).status_code == 200
        assert [each["restarts"] for each in replicas(http)] == [0, 0]


def test_a_group_that_hangs_is_started_again_and_no_request_is_lost(server: LaunchedServer) -> None:
    with client(server.url) as http:
        http.timeout = httpx.Timeout(120)
        info = server.server_info()
        assert info is not None
        port = re.findall(r"a/0: .* --port (\d+)", server.log.read_text())[-1]
        *_, engine = [pid for pid in descendants(info["pid"]) if f"--port\0{port}\0" in command_line(pid)]
        for pid in descendants(engine):
            os.kill(pid, signal.SIGSTOP)
        answers = [http.post("/v1/completions", json={"model": "tiny", "prompt": f"request {i}"}) for i in range(8)]
        assert {answer.status_code for answer in answers} == {200}
        wait_until(lambda: replicas(http)[0]["restarts"] == 1, 60, "it is started again")
        assert "nothing has come from it for 15" in replicas(http)[0]["last_error"]
        assert http.get("/health").json()["groups"] == {"a": "ok", "b": "ok"}
