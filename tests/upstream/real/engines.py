"""Real engines from `.upstream`, behind sglk's router, and what is asked of them."""

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglk.bench.target import LaunchedServer
from tests.processes import is_alive
from tests.upstream.stand_ins import client

REPOSITORY = Path(__file__).parents[3]
START_S = 600.0
"""An engine imports a gigabyte of Python first; on a busy machine that takes minutes."""

QUIET = {
    # Its scheduler takes a whole core while it has nothing to do.
    "sglang": ("engine.extra_args.sleep_on_idle=true",),
    "vllm": (),
}
"""What lets an engine leave the machine to what is tried."""

OWN = {"sglang": (), "vllm": ("runtime.page_size=32", "runtime.disable_cuda_graph=true")}
"""What an engine needs on a CPU, and what lets it start sooner."""

NEW_TOKENS = 24
LENGTHS = (5, 70, 33, 150, 96, 1)
"""Tokens of the prompts: some beyond a chunk of 64, some not a multiple of a page."""

Tokens = list[list[int]]


def prompts(seed: int = 0) -> Tokens:
    return [[1 + (index * 37 + at * 11 + seed) % 250 for at in range(length)] for index, length in enumerate(LENGTHS)]


def python_of(engine: str) -> str:
    environment = REPOSITORY / ".upstream" / engine
    if not (environment / ".built").exists():
        pytest.fail(f"{environment} is not there; run scripts/upstream-env {engine}, or make test-upstream")
    return str(environment / "bin" / "python")


def words(engine: str, model: Path, folder: Path, *more: str) -> list[str]:
    """Return the words of `sglk serve` for a tiny model in fp32, without those of a page."""
    return [
        "chip=cpu",
        f"model={model}",
        f"engine={engine}",
        f"engine.python={python_of(engine)}",
        f"engine.logs={folder / 'logs'}",
        f"engine.start_timeout_s={START_S:g}",
        "runtime.dtype=fp32",
        "runtime.max_total_tokens=4096",
        "runtime.chunked_prefill_size=64",
        "profiles=none",
        *QUIET[engine],
        *more,
    ]


@contextmanager
def served(engine: str, model: Path, folder: Path, *more: str) -> Iterator[LaunchedServer]:
    with LaunchedServer(words(engine, model, folder, *more), log=folder / "serve.log", timeout_s=START_S) as server:
        yield server


def tokens(url: str, asked: Sequence[int], model: str = "tiny") -> list[int]:
    """Return the greedy continuation of a prompt, by the route that the engine gives token ids on."""
    common: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    with client(url) as http:
        answer = http.post(
            "/generate", json={"input_ids": asked, "sampling_params": common | {"max_new_tokens": NEW_TOKENS}}
        )
        if answer.status_code == 404:
            body = common | {"model": model, "prompt": asked, "max_tokens": NEW_TOKENS, "return_token_ids": True}
            found = _ok(http.post("/v1/completions", json=body))["choices"][0]["token_ids"]
        else:
            found = _ok(answer)["output_ids"]
    return [int(token) for token in found]


def one_by_one(url: str, asked: Tokens) -> Tokens:
    return [tokens(url, prompt) for prompt in asked]


def at_once(url: str, asked: Tokens) -> Tokens:
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda prompt: tokens(url, prompt), asked))


def cached_tokens(url: str, asked: Sequence[int]) -> int:
    with client(url) as http:
        body = {"model": "tiny", "prompt": asked, "max_tokens": 1, "temperature": 0.0}
        usage = _ok(http.post("/v1/completions", json=body))["usage"]
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def engine_url(server: LaunchedServer) -> str:
    """Return where the engine behind a server's router listens, as its log says."""
    found = re.findall(r"--host (127\.0\.0\.1) --port (\d+)", server.log.read_text())
    return "http://{}:{}".format(*found[-1])


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # has ended meanwhile
        parents.setdefault(parent, []).append(int(folder.name))
    found, open_pids = [], [pid]
    while open_pids:
        below = parents.get(open_pids.pop(), [])
        found += below
        open_pids += below
    return found


def stop_amid_answer(server: LaunchedServer, signal_number: int) -> tuple[str, list[int]]:
    """End a server while it answers; returns the stream that it ended with and the processes that are left."""
    info = server.server_info()
    assert info is not None
    pids = [server.pid, info["pid"], *descendants(info["pid"])]
    assert len(pids) > 3, "the engine is a process of its own"
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 150, "stream": True, "ignore_eos": True}
    with client(server.url) as http, http.stream("POST", "/v1/completions", json=body) as answer:
        pieces = answer.iter_lines()
        said = [next(pieces)]
        os.kill(info["pid"], signal_number)
        said += list(pieces)
    server.close()
    return "\n".join(said), [pid for pid in pids if is_alive(pid)]


def _ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()
