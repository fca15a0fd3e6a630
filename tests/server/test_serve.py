"""`sglk serve` as a process of its own, on a tiny model from disk."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sglk.server.announcement import READY
from sglk.testing.tiny import write_tiny_model
from tests.server.process import Process
from tests.server.serving import wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=100_000)


@pytest.fixture(params=[(), ("uvloop", "httptools")], ids=["fast", "without-uvloop"])
def process(model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    settings = ("server.port=0", "server.shutdown_timeout_s=60", "runtime.max_total_tokens=100000")
    running = Process(model, tmp_path, *settings, without=request.param)
    yield running
    running.child.kill()
    running.child.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_served_model_answers_and_ends_in_order(process: Process, number: signal.Signals) -> None:
    url = process.wait_ready()
    body = {"prompt": "x", "max_tokens": 8, "ignore_eos": True}
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        assert client.get("/health_generate").status_code == 200
        usage = client.post("/v1/completions", json=body).json()["usage"]
        assert usage["completion_tokens"] == 8
        # A request that is under way when the signal comes is answered in full; it takes longer than the signal.
        with client.stream("POST", "/v1/completions", json={**body, "max_tokens": 3000, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            process.child.send_signal(number)
            # As the terminal does after the shell.
            wait_until(lambda: "shutting down: 1 requests" in process.text())
            process.child.send_signal(signal.SIGHUP)
            assert list(lines)[-2] == "data: [DONE]"

    assert process.child.wait(120) == 0
    assert "curl -s" in process.text()
    assert "Traceback" not in process.text()
    assert "ERROR" not in process.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(process: Process, number: signal.Signals) -> None:
    url = process.wait_ready()
    body = {"prompt": "x", "max_tokens": 90_000, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(base_url=url, timeout=120, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        process.child.send_signal(number)
        wait_until(lambda: "shutting down: 1 requests" in process.text())
        assert process.child.poll() is None
        process.child.send_signal(number)
        assert '"code":"aborted"' in "".join(lines)
        assert process.child.wait(120) == 0

    assert "Traceback" not in process.text()
    assert "ERROR" not in process.text()


def test_a_taken_port_is_reported_before_anything_is_loaded(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        process = Process(model, tmp_path, f"server.port={port}")
        assert process.child.wait(120) == 2

    # One line and no other: neither backend nor model has been touched.
    (line,) = process.text().splitlines()
    assert f"server.port={port} is taken by process {os.getpid()}" in line


@pytest.mark.parametrize("port", ["70000", "8000x", "-1"])
def test_a_port_that_is_none_is_one_line(model: Path, tmp_path: Path, port: str) -> None:
    process = Process(model, tmp_path, f"server.port={port}")

    assert process.child.wait(120) == 2
    assert len(process.text().splitlines()) == 1
    assert "server.port" in process.text()


def test_a_broken_chat_template_ends_the_start(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if %}")
    for name in (template, tmp_path / "missing.jinja"):
        process = Process(model, tmp_path, "server.port=0", f"server.chat_template={name}")
        assert process.child.wait(120) == 2
        assert f"server.chat_template={name}" in process.text().splitlines()[-1]
        assert READY not in process.text()
