"""The real sglang-router with sglk's servers as its workers."""

import os
import signal
from pathlib import Path

import pytest

from sglk.bench.target import LaunchedServer
from sglk.child import ChildProcess, http_ok
from sglk.upstream.port import free_port
from tests.upstream.real.engines import python_of
from tests.upstream.real.load import CONCURRENCY, REQUESTS, under_load

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(300)]


def worker(model: Path, folder: Path, name: str) -> LaunchedServer:
    words = ["chip=cpu", f"model={model}", "runtime.dtype=fp32", "runtime.max_total_tokens=4096", "profiles=none"]
    return LaunchedServer(words, log=folder / f"{name}.log", timeout_s=120)


def test_no_request_is_lost_when_a_worker_is_killed(tiny: Path, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with worker(tiny, tmp_path, "first") as first, worker(tiny, tmp_path, "second") as second:
        command = [python_of("sglang"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--policy", "round_robin", "--prometheus-port", str(free_port())]
        command += ["--worker-urls", first.url, second.url]
        with ChildProcess(command, log=tmp_path / "router.log", label="sglang-router") as router:
            router.wait_until(lambda: http_ok(f"{url}/readiness"), timeout_s=120)
            info = first.server_info()
            assert info is not None
            ended = under_load(url, lambda: os.kill(info["pid"], signal.SIGKILL))
            assert len(ended) == REQUESTS
            assert sum(each.whole for each in ended) >= REQUESTS - 2 * CONCURRENCY
            assert all(each.whole or each.error for each in ended)
            assert router.returncode is None
