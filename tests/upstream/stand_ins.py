"""Real processes of the stand-in for SGLang, and what tests ask of processes."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from sglk.child import ChildProcess, http_ok
from sglk.upstream.port import free_port

FOLDER = Path(__file__).with_name("stand_in")


def path_with_stand_in() -> str:
    return os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])


@contextmanager
def stand_in(folder: Path, name: str, port: int | None = None, **orders: str) -> Iterator[str]:
    """Run one as a server that others name by its URL; `orders` are variables of its environment."""
    port = port or free_port()
    environment: Mapping[str, str] = {"PYTHONPATH": path_with_stand_in(), **orders}
    command = [sys.executable, "-m", "sglang.launch_server", "--port", str(port), "--served-model-name", "m"]
    with ChildProcess(command, log=folder / f"{name}.log", label=name, env=environment) as child:
        url = f"http://127.0.0.1:{port}"
        child.wait_until(lambda: http_ok(f"{url}/health"), timeout_s=120)
        yield url


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False, timeout=120)
