"""One engine over two machines, played by two `sglk serve` on this one: parts of a model that talk by gloo."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from sglk.bench.target import LaunchedServer, serve_command
from sglk.child import ChildProcess
from sglk.upstream.port import free_port
from tests.processes import is_alive
from tests.upstream.real.engines import OWN, START_S, Tokens, at_once, descendants, one_by_one, prompts, words
from tests.upstream.stand_ins import client
from tests.waiting import wait_until

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(900)]


# A core for each part. Without it SGLang asks for as many NUMA nodes as there are parts, and vLLM takes the same core.
CORES = {"sglang": "SGLANG_CPU_OMP_THREADS_BIND", "vllm": "VLLM_CPU_OMP_THREADS_BIND"}


def machine(engine: str, rank: int, model: Path, folder: Path, port: int) -> list[str]:
    span = (f"engine.dist_init_addr=127.0.0.1:{port}", "engine.nnodes=2", f"engine.node_rank={rank}")
    own = folder / str(rank)
    own.mkdir()
    return words(engine, model, own, *OWN[engine], *span, "runtime.tp_size=2", "groups='cpu:0,cpu:1'")


def state(http: httpx.Client) -> str:
    return str(http.get("/admin/groups").json()["groups"][0]["replicas"][0]["state"])


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_two_machines_answer_as_one_and_the_end_of_one_is_seen(
    engine: str, tiny: Path, tmp_path: Path, native: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    cores = ("0|1", "0|1") if engine == "sglang" else ("0", "1")
    port = free_port()
    monkeypatch.setenv(CORES[engine], cores[1])
    command = serve_command(machine(engine, 1, tiny, tmp_path, port))
    with ChildProcess(command, log=tmp_path / "second.log", label="machine 1") as second:
        monkeypatch.setenv(CORES[engine], cores[0])
        given, log = machine(engine, 0, tiny, tmp_path, port), tmp_path / "first.log"
        with LaunchedServer(given, log=log, timeout_s=START_S) as first, client(first.url) as http:
            assert one_by_one(first.url, prompts()) == native
            assert at_once(first.url, prompts()) == native
            there, here = descendants(second.pid), descendants(first.pid)
            assert len(there) >= 4, "sglk, its guardian, the engine and its part of the model"
            os.kill(there[0], signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, there)), 60, "nothing is left of the machine that died")
            wait_until(
                lambda: http.post("/v1/completions", json={"prompt": "a"}).status_code >= 500, 60, "nobody answers"
            )
            wait_until(lambda: state(http) != "serving", 60, "the first machine is out")
            here += descendants(first.pid)
            first.close()
            wait_until(lambda: not any(map(is_alive, here)), 60, "nothing is left of the first machine")
    (told,) = [line for line in log.read_text().splitlines() if "replica group0/0 is taken out: " in line]
    assert f"{engine} group0/0" in told
    assert "gloo" in told, "what connects it to the other machine"
