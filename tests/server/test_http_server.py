import asyncio
import logging
import os
import signal
import socket
import threading
from typing import Any

import httpx
import pytest

from sglk.errors import ConfigError
from sglk.server import http_server
from sglk.server.app import create_app
from sglk.server.http_server import HttpServer
from sglk.server.port import bind, url_of
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import ENDLESS, deploy, patient_runner, wait_until


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


def test_requests_that_outlast_the_time_to_finish_are_aborted() -> None:
    deployment = deploy(patient_runner(), server={"shutdown_timeout_s": 0.05})
    replies: list[httpx.Response] = []
    with bind("127.0.0.1", 0) as listener:
        url = url_of(listener)

        def ask() -> None:
            replies.append(httpx.post(f"{url}/v1/completions", json=ENDLESS, timeout=30, trust_env=False))

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
        asker = threading.Thread(target=lambda: httpx.get(url, timeout=30, trust_env=False))
        HttpServer(stuck, deployment, asker.start).run_until_stopped(listener)
        asker.join()

    assert "Cancel 1 running task(s)" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
