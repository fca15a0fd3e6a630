"""Servers that hang, by what their probes and requests are told, and those that only seem to."""

import asyncio
import itertools
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.errors import RunError
from sglk.upstream.engine import UpstreamEngine
from sglk.upstream.launch import launch
from sglk.upstream.messages import ProxyRequest
from sglk.upstream.probe import unhealthy
from tests.waiting import wait_until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


class Mute(socketserver.ThreadingTCPServer):
    """Answers no probe while it has no `figures`, and requests with a piece for each `go_on`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.figures: Callable[[], bytes] | None = None
        self.asked = threading.Event()
        self.over = threading.Event()
        self.go_on = threading.Semaphore(0)


class Connection(socketserver.StreamRequestHandler):
    server: Mute

    def handle(self) -> None:
        if self.rfile.readline().startswith(b"GET"):
            if self.server.figures is None:
                self.server.over.wait()
            else:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + self.server.figures())
            return
        self.server.asked.set()
        self.wfile.write(HEAD)
        while self.server.go_on.acquire() and not self.server.over.is_set():
            self.wfile.write(b"data: {}\n\n")


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mute]:
    monkeypatch.setattr("sglk.upstream.engine.LOOK_S", 0.01)
    with Mute() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.over.set()
        server.go_on.release()
        server.shutdown()


def test_a_server_that_answers_requests_has_not_hung(mute: Mute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglk.upstream.engine.unhealthy", partial(unhealthy, timeout_s=0.05))
    engine = UpstreamEngine("a/0", f"http://127.0.0.1:{mute.server_address[1]}")

    async def stream() -> None:
        pieces: asyncio.Queue[bytes] = asyncio.Queue()
        request = ProxyRequest("r", (), path="/v1/completions")
        engine.submit(request, lambda output: pieces.put_nowait(getattr(output, "data", b"")))
        for _ in range(2):
            await asyncio.to_thread(wait_until, lambda: engine.stuck_s > 0.2, 120, "its probes get no answer")
            sent_s = time.monotonic()
            mute.go_on.release()
            assert await pieces.get() == b"data: {}\n\n"
            assert engine.stuck_s <= time.monotonic() - sent_s
        assert engine.is_alive
        await asyncio.to_thread(engine.shutdown)
        assert await pieces.get() == b""

    asyncio.run(stream())


def test_a_server_of_vllm_that_takes_no_steps_has_hung_though_it_says_that_it_is_well(mute: Mute) -> None:
    totals = itertools.count(8)
    mute.figures = lambda: b"vllm:generation_tokens_total 7\n"
    engine = UpstreamEngine("a/0", f"http://127.0.0.1:{mute.server_address[1]}")

    async def ask() -> None:
        await asyncio.to_thread(wait_until, lambda: engine.stats().generated_tokens == 7, 120, "its figures are read")
        await asyncio.to_thread(wait_until, lambda: engine.stuck_s == 0, 120, "its probes get answers")
        engine.submit(ProxyRequest("r", (), path="/v1/completions"), lambda output: None)
        await asyncio.to_thread(wait_until, lambda: engine.stuck_s > 0.1, 120, "it takes no steps")
        mute.figures = lambda: b"vllm:generation_tokens_total %d\n" % next(totals)
        await asyncio.to_thread(wait_until, lambda: engine.stuck_s == 0, 120, "it takes steps")
        mute.figures = lambda: b"vllm:generation_tokens_total 7\n"
        await asyncio.to_thread(wait_until, lambda: engine.stuck_s > 0.1, 120, "it takes none any more")
        engine.abort("r")
        await asyncio.to_thread(wait_until, lambda: engine.stuck_s == 0, 120, "nobody waits for it")
        await asyncio.to_thread(engine.shutdown)

    asyncio.run(ask())


def test_a_start_is_given_up_while_the_first_token_does_not_come(mute: Mute) -> None:
    mute.figures = lambda: b'{"data": [{"id": "m"}]}'
    words = [f"groups=[{{name: a, url: 'http://127.0.0.1:{mute.server_address[1]}'}}]", "profiles=none"]
    (replica,) = replica_configs(compose("serve", words))
    cancelled = threading.Event()
    with ThreadPoolExecutor() as pool:
        start = pool.submit(launch, replica, cancelled)
        assert mute.asked.wait(60)
        cancelled.set()
        with pytest.raises(RunError, match="the start of a/0 was given up"):
            start.result(60)
