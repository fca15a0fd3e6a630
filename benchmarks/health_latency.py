"""How long `/health` takes while 64 long requests run: the real engine on the processor, in a process of its own."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.result import Row, main
from sglk.bench.target import LaunchedServer

RUNNING = 64
BAR_S = 0.2
WORDS = (
    "chip=cpu",
    "model=smollm2",
    "profiles=none",
    "server.port=0",
    f"runtime.max_running_requests={RUNNING}",
    "runtime.max_total_tokens=131072",
    "runtime.context_length=2048",
)
LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}


def measure(quick: bool) -> list[Row]:
    """Ask again and again while 64 streams are read."""
    with tempfile.TemporaryDirectory() as folder:
        server = LaunchedServer(WORDS, log=Path(folder) / "log")
        try:
            idle, busy = asyncio.run(health_s(server.url, 40 if quick else 500))
        finally:
            server.close()
    return [
        Row("/health, idle, p99", _p99(idle), "s", "bar, at most", BAR_S),
        Row(f"/health, {RUNNING} long requests running, median", statistics.median(busy), "s"),
        Row(f"/health, {RUNNING} long requests running, p99", _p99(busy), "s", "bar, at most", BAR_S),
    ]


async def health_s(url: str, count: int) -> tuple[list[float], list[float]]:
    """Return the times of `count` probes of the idle server and of the busy one, in seconds."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False) as http:
        idle = [await _probe(http) for _ in range(count)]
        streams = [asyncio.create_task(_read(http)) for _ in range(RUNNING)]
        while (await http.get("/get_load")).json()[0]["num_reqs"] < RUNNING:
            await asyncio.sleep(0.1)
        while (await http.get("/get_load")).json()[0]["num_waiting_reqs"]:
            await asyncio.sleep(0.1)
        busy = [await _probe(http) for _ in range(count)]
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return idle, busy


async def _probe(http: httpx.AsyncClient) -> float:
    start = time.perf_counter()
    (await http.get("/health")).raise_for_status()
    taken = time.perf_counter() - start
    await asyncio.sleep(0.05)
    return taken


async def _read(http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/v1/completions", json=LONG) as response:
        async for _ in response.aiter_raw():
            pass


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


if __name__ == "__main__":
    raise SystemExit(main("health_latency", measure))
