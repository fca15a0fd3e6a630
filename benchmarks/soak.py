"""Two device groups under everything at once, until nothing may be left: no request, no memory, no thread.

64 clients send plain and streaming requests; one in ten leaves early, one in twenty sends nonsense. Weights change, and
a group is killed now and then, and starts again by itself. The groups are simulated cards that answer as fast as the
scheduler goes. Exits with 1 when a request was lost, a counter is left over, memory grew, or a thread did not end.
"""

import argparse
import asyncio
import itertools
import json
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from benchmarks.result import Row, main
from sglk.cluster.fleet import Fleet
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.server.app import create_app
from sglk.server.deployment import Deployment
from sglk.server.http_server import HttpServer
from sglk.server.serve import load_deployment

CLIENTS = 64
LEAVES, NONSENSE = 0.10, 0.05
MEMORY_BAR = 0.05
SETTLED_S = 300.0
"""A shorter run says nothing of memory."""
WORDS = (
    "backend=sim",
    "backend.options.speed=0",
    "model=smollm2",
    "groups=[{name: a, devices: ['h100:0'], weight: 80}, {name: b, devices: ['kunlun:0'], weight: 20}]",
    "runtime.max_running_requests=32",
    "runtime.max_total_tokens=65536",
    "runtime.chunked_prefill_size=256",
    "runtime.page_size=128",
    "router.restart_wait_s=0.5",
    "router.breaker_cool_down_s=0.5",
    "server.log_level=critical",
    "server.port=0",
)
"""What is served; the simulator computes no model, so that the soak is of scheduler, router and server."""


def measure(quick: bool) -> list[Row]:
    """Soak for `--minutes`, or for half a minute."""
    minutes = _minutes if _minutes is not None else (0.5 if quick else 20.0)
    soak = Soak(minutes * 60, weights_every_s=10.0 if minutes > 2 else 2.0, kill_every_s=60.0 if minutes > 2 else 8.0)
    soak.run()
    return soak.rows()


class Soak:
    """One run and what came of it."""

    def __init__(self, length_s: float, *, weights_every_s: float, kill_every_s: float) -> None:
        self._length_s, self._weights_every_s, self._kill_every_s = length_s, weights_every_s, kill_every_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.sent = itertools.count()
        self.ends = Counter[str]()
        self.memory: list[float] = []
        self.kills = 0
        self.left: dict[str, float] = {}
        self.threads: list[str] = []

    def run(self) -> None:
        """Serve, trouble and count."""
        before = {thread.ident for thread in threading.enumerate()}
        with served() as (deployment, port):
            workers = [threading.Thread(target=self._client, args=(port, number)) for number in range(CLIENTS)]
            workers += [
                threading.Thread(target=self._every, args=(self._weights_every_s, self._change_weights, deployment)),
                threading.Thread(target=self._every, args=(self._kill_every_s, self._kill, deployment.fleet)),
                threading.Thread(target=self._every, args=(0.5, self._look)),
            ]
            for worker in workers:
                worker.start()
            self._over.wait(self._length_s)
            self._over.set()
            for worker in workers:
                worker.join()
            self.left = _left_over(deployment)
        # Whoever ended a moment ago may still be on his way out.
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and (threads := _since(before)):
            time.sleep(0.05)
        self.threads = [thread.name for thread in threads]

    def rows(self) -> list[Row]:
        """Return the figures; the bars are what must hold."""
        quarter = len(self.memory) // 4
        growth = (
            statistics.median(self.memory[3 * quarter :]) / statistics.median(self.memory[2 * quarter : -quarter]) - 1
        )
        asked = sum(self.ends.values())
        lost = self.ends["lost"]
        rows = [
            Row("requests", asked, "1"),
            *(Row(f"requests that ended as {end}", count, "1") for end, count in sorted(self.ends.items())),
            Row("groups killed", self.kills, "1"),
            Row("requests lost", lost, "1"),
            *(Row(f"left over: {name}", value, "1") for name, value in self.left.items()),
            Row("threads left over", len(self.threads), "1"),
            Row("growth of memory over the second half", growth, "1", "bar, at most", MEMORY_BAR),
        ]
        self.faults = [
            *([f"{lost} requests were lost"] if lost else []),
            *(f"{name} is {value:g}" for name, value in self.left.items() if value),
            *(f"thread {name} did not end" for name in self.threads),
            # Caches and arenas fill in the first minutes.
            *([f"memory grew by {growth:.1%}"] if growth > MEMORY_BAR and self._length_s >= SETTLED_S else []),
        ]
        for fault in self.faults:
            print(f"FAULT: {fault}", file=sys.stderr)
        _faults.extend(self.faults)
        return rows

    def _client(self, port: int, number: int) -> None:
        rng = random.Random(number)
        while not self._over.is_set():
            end = self._ask(port, rng, next(self.sent))
            with self._lock:
                self.ends[end] += 1

    def _ask(self, port: int, rng: random.Random, number: int) -> str:
        """Send one request; returns how it ended, `lost` when neither an answer nor an error came."""
        body: dict[str, Any] = {
            "prompt": " word" * rng.randint(1, 300) + str(number % 50),
            "max_tokens": rng.randint(1, 64),
            "ignore_eos": True,
            "stream": rng.random() < 0.5,
        }
        if rng.random() < 0.3:
            body["user"] = f"user {rng.randint(0, 99)}"
        if rng.random() < NONSENSE:
            body |= rng.choice([{"temperature": "hot"}, {"max_tokens": -1}, {"prompt": []}, {"n": 10**9}])
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body))
            if rng.random() < LEAVES:
                self._over.wait(rng.random() * 0.2)
                return "left"
            response = connection.getresponse()
            return _end(response.status, response.read(), streamed=bool(body["stream"]))
        except (OSError, HTTPException):
            return "lost"
        finally:
            connection.close()

    def _every(self, wait_s: float, act: Any, *arguments: Any) -> None:
        while not self._over.wait(wait_s):
            act(*arguments)

    def _change_weights(self, deployment: Deployment) -> None:
        share = random.choice([0, 20, 50, 80, 100])
        deployment.fleet.router.set_weights({"a": 100 - share, "b": share}, "admin")

    def _kill(self, fleet: Fleet) -> None:
        """Let the engine of a group die as of a lost device."""
        replica = random.choice(fleet.router.replicas)
        engine = fleet.engines[replica.name]
        if replica.state == "serving" and engine.is_alive:
            self.kills += 1
            engine._lose_runner("killed by the soak")

    def _look(self) -> None:
        self.memory.append(_resident_mib())


@contextmanager
def served() -> Iterator[tuple[Deployment, int]]:
    """Serve WORDS in a thread of this process, and shut down as after a signal."""
    composed = compose("serve", WORDS)
    deployment = load_deployment(composed.config, None, replica_configs(composed))
    deployment.fleet.start()
    ready = threading.Event()
    server = _ThreadServer(create_app(deployment), deployment, ready.set)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        thread = threading.Thread(target=server.run_until_stopped, args=(listener,), name="server")
        thread.start()
        ready.wait()
        try:
            yield deployment, listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


class _ThreadServer(HttpServer):
    """The server in a thread, where there are no signals."""

    def run_until_stopped(self, listener: socket.socket) -> None:
        asyncio.run(self._serve_and_shut_down(listener))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _end(status: int, content: bytes, *, streamed: bool) -> str:
    if status != 200:
        return f"status {status}" if b'"error"' in content else "lost"
    if not streamed:
        return "completed" if b'"finish_reason"' in content else "lost"
    if content.endswith(b"data: [DONE]\n\n"):
        return "completed"
    return "error in a stream" if b'data: {"error"' in content else "lost"


def _left_over(deployment: Deployment) -> dict[str, float]:
    """Return what must be zero once the last client has got its answer."""
    router, bridge = deployment.fleet.router, deployment.bridge

    def figures() -> dict[str, float]:
        stats, counts = deployment.fleet.stats(), deployment.counters.counts()
        ended = sum(counts[name] for name in ("completed", "refused", "aborted", "failed"))
        return {
            "requests open in the bridge": bridge.open_requests,
            "requests open in the router": router.open_requests,
            "requests open at replicas": sum(replica.open_requests for replica in router.replicas),
            "picks that have not ended": sum(
                replica.counters.picks - sum(replica.counters.ended.values()) for replica in router.replicas
            ),
            "requests running": stats.running_requests,
            "requests queued": stats.queued_requests,
            "KV tokens held": stats.kv_used_tokens,
            "HTTP requests in flight": counts["in_flight"],
            "HTTP requests received less those ended": counts["received"] - ended,
        }

    # Clients that left are noticed within a second; a group that was just killed is given up within a tick.
    deadline = time.monotonic() + 15
    while any(figures().values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return figures()


def _since(before: set[int | None]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.ident not in before]


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


_minutes: float | None = None
_faults: list[str] = []

if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--minutes", type=float)
    options, sys.argv[1:] = parser.parse_known_args()
    _minutes = options.minutes
    code = main("soak", measure)
    raise SystemExit(1 if _faults else code)
