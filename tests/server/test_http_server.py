import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest

from sglk.errors import ConfigError
from sglk.server import http_server
from sglk.server.app import create_app
from sglk.server.http_server import HttpServer
from sglk.server.port import bind, url_of
from sglk.server.unread import UNREAD_BYTES
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import ENDLESS, Served, deploy, patient_runner, serving
from tests.waiting import wait_until


def test_of_two_servers_that_bound_one_port_the_second_gives_up() -> None:
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        port = first.getsockname()[1]
        first.listen()
        deployment = deploy(ScriptedRunner(), server={"port": port})
        server = HttpServer(create_app(deployment), deployment, lambda: pytest.fail("it announced itself"))

        with pytest.raises(ConfigError, match=f"server.port={port} is taken by process {os.getpid()}"):
            server.run_until_stopped(second)

    assert not deployment.fleet.first.is_alive


def test_it_announces_itself_once_it_answers_and_stops_on_a_signal() -> None:
    deployment = deploy(ScriptedRunner())
    states: list[int] = []
    with bind("127.0.0.1", 0) as listener:
        url = url_of(listener)

        def ask_then_stop() -> None:
            states.append(httpx.get(f"{url}/health", trust_env=False).status_code)
            os.kill(os.getpid(), signal.SIGTERM)

        asker = threading.Thread(target=ask_then_stop)
        HttpServer(create_app(deployment), deployment, asker.start).run_until_stopped(listener)
        asker.join()

    assert states == [200]
    assert deployment.draining
    assert not deployment.fleet.first.is_alive


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let last words take their time, as they may on a machine with much else to do."""
    monkeypatch.setattr(http_server, "FLUSH_S", 120)
    monkeypatch.setattr(http_server, "LAST_WORDS_S", 120.0)


@pytest.mark.usefixtures("patient")
def test_requests_that_outlast_the_time_to_finish_are_aborted() -> None:
    deployment = deploy(patient_runner(), server={"shutdown_timeout_s": 0.05})
    replies: list[httpx.Response] = []
    with bind("127.0.0.1", 0) as listener:
        url = url_of(listener)

        def ask() -> None:
            replies.append(httpx.post(f"{url}/v1/completions", json=ENDLESS, timeout=120, trust_env=False))

        def stop_while_asked() -> None:
            asker.start()
            wait_until(lambda: deployment.bridge.open_requests == 1)
            os.kill(os.getpid(), signal.SIGTERM)

        asker, stopper = threading.Thread(target=ask), threading.Thread(target=stop_while_asked)
        HttpServer(create_app(deployment), deployment, stopper.start).run_until_stopped(listener)
        stopper.join()
        asker.join()

    assert replies[0].status_code == 503
    assert replies[0].json()["error"]["code"] == "aborted"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (signal.SIGHUP, signal.SIGHUP, 200),
        (signal.SIGHUP, signal.SIGTERM, 200),
        (signal.SIGHUP, signal.SIGINT, 200),
        (signal.SIGTERM, signal.SIGHUP, 200),
        (signal.SIGTERM, signal.SIGTERM, 503),
        (signal.SIGINT, signal.SIGTERM, 503),
    ],
)
def test_of_two_signals_at_once_a_hangup_hurries_nobody(
    first: signal.Signals, second: signal.Signals, status: int
) -> None:
    gate = threading.Event()
    deployment = deploy(ScriptedRunner(gate=gate), server={"shutdown_timeout_s": 60})
    replies: list[httpx.Response] = []
    with bind("127.0.0.1", 0) as listener:
        url = url_of(listener)

        def ask() -> None:
            body = {"prompt": "x", "max_tokens": 4, "ignore_eos": True}
            replies.append(httpx.post(f"{url}/v1/completions", json=body, timeout=120, trust_env=False))

        def stop_while_asked(loop: asyncio.AbstractEventLoop) -> None:
            wait_until(lambda: deployment.bridge.open_requests == 1)
            # In the loop's own thread: neither signal is seen there before both have come.
            loop.call_soon_threadsafe(send_both, loop)

        def send_both(loop: asyncio.AbstractEventLoop) -> None:
            for number in (first, second):
                os.kill(os.getpid(), number)
            loop.call_soon(gate.set)

        def begin() -> None:
            threads.append(threading.Thread(target=stop_while_asked, args=(asyncio.get_running_loop(),)))
            for thread in threads:
                thread.start()

        threads = [threading.Thread(target=ask)]
        HttpServer(create_app(deployment), deployment, begin).run_until_stopped(listener)
        for thread in threads:
            thread.join()

    assert replies[0].status_code == status


def test_signals_while_the_engine_shuts_down_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = deploy(ScriptedRunner())
    shut_down = deployment.fleet.shutdown
    missed: list[int] = []

    def shut_down_under_signals(timeout_s: float) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        shut_down(timeout_s)

    monkeypatch.setattr(deployment.fleet, "shutdown", shut_down_under_signals)
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, lambda got, _: missed.append(got)) for number in numbers]
    try:
        with bind("127.0.0.1", 0) as listener:
            stop = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
            HttpServer(create_app(deployment), deployment, stop.start).run_until_stopped(listener)
            stop.join()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)

    assert missed == [signal.SIGTERM], "only the last one, after the end, goes to the handler from before"
    assert not deployment.fleet.first.is_alive


@pytest.mark.usefixtures("patient")
def test_a_body_that_never_comes_to_its_end_does_not_outlast_the_time_to_finish(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deployment = deploy(ScriptedRunner(), server={"shutdown_timeout_s": 0.05})
    answers: list[bytes] = []
    with bind("127.0.0.1", 0) as listener:

        def stop_in_the_middle() -> None:
            with socket.create_connection(listener.getsockname()) as client:
                client.sendall(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{"prompt": ')
                wait_until(lambda: deployment.counters.received._value.get() == 1)
                os.kill(os.getpid(), signal.SIGTERM)
                while piece := client.recv(4096):
                    answers.append(piece)

        stopper = threading.Thread(target=stop_in_the_middle)
        HttpServer(create_app(deployment), deployment, stopper.start).run_until_stopped(listener)
        stopper.join()

    answer = b"".join(answers)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"shutting_down"' in answer
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture(scope="module", params=["httptools", "h11"])
def parsed(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server whose requests are parsed by what is installed, and by what is there if nothing is."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "h11":
            patch.setattr(http_server, "find_spec", lambda _: None)
        with serving(ScriptedRunner()) as served:
            yield served


# More than is read at once: h11 looks at the length of what is incomplete alone.
LONG = b"x" * (5 * http_server.MAX_HEAD_BYTES)
HEADS = {
    "url": b"GET /" + LONG + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "headers": b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a: bcd\r\n" * (len(LONG) // 4) + b"\r\n",
    "never ends": b"GET /health HTTP/1.1\r\nhost: x\r\na: " + LONG,
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_head_that_is_too_long_gets_400_and_no_more(parsed: Served, head: bytes) -> None:
    host, _, port = parsed.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.settimeout(120)
        # It may be refused before all of it is sent, and what is left unread then resets the connection.
        with contextlib.suppress(ConnectionError):
            for place in range(0, len(head), 8192):
                client.sendall(head[place : place + 8192])
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(4096):
                answer += piece

    assert not answer or answer.startswith(b"HTTP/1.1 400 ")
    assert b"200" not in answer
    assert parsed.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/nothing", "/health"])
def test_a_connection_outlives_a_request_whose_body_nobody_wants(parsed: Served, path: str) -> None:
    """Clients that send head and body apart would lose the next request with it."""
    host, _, port = parsed.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=120) as client:
        for _ in range(2):
            client.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n".encode())
            assert status_of(client) in (404, 405)
            client.sendall(b'{"prompt":' + b" " * 9 + b"}")
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert status_of(client) == 200


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (f"content-length: {UNREAD_BYTES + 1}", b""),
        ("content-length: 20\r\nexpect: 100-continue", b""),
        ("transfer-encoding: chunked", b"200000\r\n" + bytes(2 * UNREAD_BYTES)),
    ],
)
def test_a_connection_ends_where_much_would_come_or_perhaps_nothing(parsed: Served, head: str, rest: bytes) -> None:
    host, _, port = parsed.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=120) as client:
        client.sendall(f"POST /nothing HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode())
        assert status_of(client) == 404
        # What it has not read resets the connection.
        with contextlib.suppress(ConnectionError):
            client.sendall(rest)
            assert client.recv(65536) == b""


def status_of(client: socket.socket) -> int:
    """Read one whole answer and return its status."""
    answer = HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


def test_heads_and_bodies_up_to_their_limits_pass(parsed: Served) -> None:
    assert parsed.client.get("/health", headers={"a": "x" * 60_000}).status_code == 200
    assert parsed.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "user": "y" * 300_000}).status_code == 200


def test_a_request_that_offers_another_protocol_is_answered_by_this_one(
    parsed: Served, caplog: pytest.LogCaptureFixture
) -> None:
    offers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    with httpx.Client(base_url=parsed.url, timeout=120, trust_env=False) as client:
        for headers in ({}, offers, {}, offers):
            body = {"prompt": "x", "max_tokens": 1}
            assert client.post("/v1/completions", json=body, headers=headers).status_code == 200

    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_cancelled_at_the_very_end_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "FLUSH_S", 0)
    deployment = deploy(ScriptedRunner(), server={"shutdown_timeout_s": 0.05})

    async def stuck(_scope: Any, _receive: Any, _send: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with bind("127.0.0.1", 0) as listener:
        url = url_of(listener)
        asker = threading.Thread(target=lambda: httpx.get(url, timeout=120, trust_env=False))
        HttpServer(stuck, deployment, asker.start).run_until_stopped(listener)
        asker.join()

    assert "Cancel 1 running task(s)" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
