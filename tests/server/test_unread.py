"""Connections on which the body of an answered request still comes do not stay open for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from sglk.server import http_server
from sglk.server.http_server import KEEP_ALIVE_S, parsing
from sglk.server.unread import UNREAD_S

EARLY = b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n"
LONG = b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n"


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until it is moved on."""

    passed_s = 0.0

    def time(self) -> float:
        return self.passed_s


class Wire(asyncio.Transport):
    """The end of a connection that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Client:
    """A client of a server that answers at once, whatever still comes, or after a long time."""

    def __init__(self, clock: Clock) -> None:
        self.wire = Wire()
        self._clock = clock
        config = uvicorn.Config(app, **parsing(), log_config=None, timeout_keep_alive=KEEP_ALIVE_S)
        config.load()
        protocol: Any = config.http_protocol_class
        self._protocol = protocol(config=config, server_state=ServerState(), app_state={}, _loop=clock)
        self._protocol.connection_made(self.wire)

    async def send(self, data: bytes, then_s: float = 0.0) -> None:
        """Send `data`, and let time pass."""
        self._protocol.data_received(data)
        await self.wait(0.0)
        await self.wait(then_s)

    async def wait(self, seconds: float) -> None:
        """Let time pass, and then all run that can."""
        self._clock.passed_s += seconds
        for _ in range(5):
            await asyncio.sleep(0)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/long":
        await receive()
        await asyncio.sleep(10 * KEEP_ALIVE_S)
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


@pytest.fixture(params=["httptools", "h11"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    if request.param == "h11":
        monkeypatch.setattr(http_server, "find_spec", lambda _: None)
    return Clock()


def run(clock: Clock, work: Coroutine[Any, Any, None]) -> None:
    try:
        clock.run_until_complete(work)
    finally:
        for task in asyncio.all_tasks(clock):
            task.cancel()
        clock.run_until_complete(asyncio.sleep(0))
        clock.close()


def test_a_connection_is_idle_from_the_end_of_the_body(clock: Clock) -> None:
    async def work() -> None:
        client = Client(clock)
        await client.send(EARLY)
        assert client.wire.written.startswith(b"HTTP/1.1 404 ")
        await client.send(b"x" * 20, then_s=KEEP_ALIVE_S - 1)
        assert not client.wire.closed
        await client.send(EARLY)
        assert client.wire.written.count(b"HTTP/1.1 404 ") == 2
        await client.send(b"x" * 20, then_s=KEEP_ALIVE_S + 1)
        assert client.wire.closed

    run(clock, work())


def test_a_body_that_drips_in_after_its_answer_has_a_time_to_come_to_its_end(clock: Clock) -> None:
    async def work() -> None:
        client = Client(clock)
        await client.send(EARLY, then_s=UNREAD_S / 2)
        await client.send(b"x", then_s=UNREAD_S / 4)
        assert not client.wire.closed
        await client.send(b"x", then_s=UNREAD_S / 2)
        assert client.wire.closed

    run(clock, work())


def test_a_request_right_behind_such_a_body_may_take_its_time(clock: Clock) -> None:
    async def work() -> None:
        client = Client(clock)
        await client.send(EARLY)
        await client.send(b"x" * 20 + LONG, then_s=2 * KEEP_ALIVE_S)
        assert not client.wire.closed
        assert client.wire.written.count(b"HTTP/1.1 404 ") == 1
        await client.wait(10 * KEEP_ALIVE_S)
        assert client.wire.written.count(b"HTTP/1.1 404 ") == 2

    run(clock, work())
