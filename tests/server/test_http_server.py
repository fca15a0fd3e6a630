import os
import signal
import threading

import httpx
import pytest

from sglk.errors import ConfigError
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
