"""One SGLang over two machines, played by two `sglk serve` on this one: parts of a model that talk by gloo."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from sglk.bench.target import LaunchedServer, serve_command
from sglk.child import ChildProcess
from sglk.upstream.launch import free_port
from tests.upstream.real.engines import START_S, Tokens, at_once, descendants, one_by_one, prompts, words
from tests.upstream.stand_ins import client, is_running, wait_for

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(900)]


def machine(rank: int, model: Path, folder: Path, port: int) -> list[str]:
    span = (f"engine.dist_init_addr=127.0.0.1:{port}", "engine.nnodes=2", f"engine.node_rank={rank}")
    own = folder / str(rank)
    own.mkdir()
    return words("sglang", model, own, *span, "runtime.tp_size=2", "groups='cpu:0,cpu:1'")


def state(http: httpx.Client) -> dict[str, str]:
    return dict(http.get("/admin/groups").json()["groups"][0]["replicas"][0])


def test_two_machines_answer_as_one_and_the_end_of_one_is_seen(
    tiny: Path, tmp_path: Path, native: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A core each, or SGLang asks for as many NUMA nodes as there are parts.
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    port = free_port()
    command = serve_command(machine(1, tiny, tmp_path, port))
    with (
        ChildProcess(command, log=tmp_path / "second.log", label="machine 1") as second,
        LaunchedServer(machine(0, tiny, tmp_path, port), log=tmp_path / "first.log", timeout_s=START_S) as first,
        client(first.url) as http,
    ):
        assert one_by_one(first.url, prompts()) == native
        assert at_once(first.url, prompts()) == native
        there, here = descendants(second.pid), descendants(first.pid)
        assert len(there) >= 4, "sglk, its guardian, the engine and its part of the model"
        os.kill(there[0], signal.SIGKILL)
        wait_for(lambda: not any(map(is_running, there)), "nothing is left of the machine that died")
        wait_for(lambda: state(http)["state"] != "serving", "the first machine sees it")
        assert http.post("/v1/completions", json={"prompt": "hello"}).status_code == 503
        here += descendants(first.pid)
        first.close()
        wait_for(lambda: not any(map(is_running, here)), "nothing is left of the first machine")
    log = (tmp_path / "first.log").read_text()
    assert "replica group0/0 is taken out: sglang group0/0" in log
    assert "Connection closed by peer" in log
