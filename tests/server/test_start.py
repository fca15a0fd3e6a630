"""`sglk serve` on a device that is too small: an error before the port opens, and advice that works."""

import re
from pathlib import Path

import httpx

from sglk.server.announcement import READY
from sglk.testing.tiny import write_tiny_model
from tests.server.test_serve import Process


def started(model: Path, folder: Path, fraction: float) -> Process:
    settings = (f"runtime.mem_fraction_static={fraction}", f"runtime.device_memory_gib={4 / 1024}", "profiles=none")
    return Process(model, folder, "server.port=0", *settings)


def test_too_small_a_fraction_is_refused_and_the_advised_one_serves_a_full_context(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    process = started(model, tmp_path, 0.05)
    assert process.child.wait(60) == 2
    assert READY not in process.text()
    (line,) = [line for line in process.text().splitlines() if line.startswith("sglk: error: ")]
    advised = re.search(r"raise it to ([0-9.]+) or more", line)
    assert advised is not None, line

    process = started(model, tmp_path, float(advised.group(1)))
    try:
        with httpx.Client(base_url=process.wait_ready(), timeout=60, trust_env=False) as client:
            body = {"prompt": [1] * 200, "max_tokens": 56, "ignore_eos": True}
            response = client.post("/v1/completions", json=body)
        assert response.json()["usage"]["completion_tokens"] == 56
    finally:
        process.child.kill()
        process.child.wait()
