"""`sglk serve` on a device that is too small: an error before the port opens, and advice that works."""

import contextlib
import re
import socket
from pathlib import Path

import httpx
import pytest

from sglk.server.announcement import READY
from sglk.testing.tiny import write_tiny_model
from tests.server.process import Process
from tests.server.serving import wait_until


def started(model: Path, folder: Path, fraction: float, port: int = 0) -> Process:
    settings = (f"runtime.mem_fraction_static={fraction}", f"runtime.device_memory_gib={4 / 1024}", "profiles=none")
    return Process(model, folder, f"server.port={port}", *settings)


@pytest.mark.slow
def test_too_small_a_fraction_is_refused_and_the_advised_one_serves_a_full_context(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    process = started(model, tmp_path, 0.05)
    assert process.child.wait(120) == 2
    assert READY not in process.text()
    (line,) = [line for line in process.text().splitlines() if line.startswith("sglk: error: ")]
    advised = re.search(r"raise it to ([0-9.]+) or more", line)
    assert advised is not None, line

    port = free_port()
    process = started(model, tmp_path, float(advised.group(1)), port)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
            # Nobody answers before a token can be made, so the first answer is that of a ready server.
            assert first_answer(client, "/health").status_code == 200
            body = {"prompt": [1] * 200, "max_tokens": 56, "ignore_eos": True}
            response = client.post("/v1/completions", json=body)
        assert response.json()["usage"]["completion_tokens"] == 56
    finally:
        process.child.kill()
        process.child.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port: int = holder.getsockname()[1]
        return port


def first_answer(client: httpx.Client, path: str) -> httpx.Response:
    """Ask until somebody answers."""
    answers: list[httpx.Response] = []

    def ask() -> bool:
        with contextlib.suppress(httpx.TransportError):
            answers.append(client.get(path))
        return bool(answers)

    wait_until(ask, timeout_s=240)
    return answers[0]
