"""Devices that really emit NaN or run out of memory in a step, by way of a backend plugin: what clients and probes see.

The plugins here are ordinary backends but for one op, or one step, which fails as that kind of device does.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from sglk.backends import reference
from sglk.backends.cpu import CpuBackend
from sglk.backends.sim import SimBackend
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.plugins import claims, register_backend
from sglk.server.serve import load_deployment
from sglk.testing.tiny import write_tiny_model
from tests.server.serving import Served, serving_deployment, wait_until

T = TypeVar("T")

NO_BYTES = 2**60
"""More than any machine has."""


@dataclass
class Trouble:
    """What is wrong with the devices of this module's plugins."""

    now: Callable[[Any], None] | None = None
    after: int = 0
    """How often it does not strike yet."""

    def strike(self, where: Any) -> None:
        if self.now is not None and self.after > 0:
            self.after -= 1
        elif self.now is not None:
            self.now(where)


TROUBLE = Trouble()


def nan(x: torch.Tensor) -> None:
    x.fill_(torch.nan)


def torch_cpu_memory(x: torch.Tensor) -> None:
    torch.empty(NO_BYTES)


def torch_cuda_memory(x: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.1 GiB in total.")


def accounted_memory(backend: SimBackend) -> None:
    backend.allocate((NO_BYTES,), torch.float32)


class SickBackend(CpuBackend):
    """The processor, with one op of its own."""

    name = "sick"
    api_version = 1

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)

        def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
            result = reference.silu_and_mul.reference(x)
            TROUBLE.strike(result)
            return result

        self.ops.register(reference.silu_and_mul, "sick", silu_and_mul)


class SickSim(SimBackend):
    """A simulated card whose steps take memory that it does not have."""

    name = "sicksim"
    api_version = 1

    def execute_runnable(self, runnable: Callable[[], T]) -> T:
        TROUBLE.strike(self)
        return super().execute_runnable(runnable)


CHIP = """# @package _global_
chip:
  name: {name}
  title: a card
  vendor: nobody
  backend: {name}
  memory_gib: 1
  bandwidth_gb_s: 50
  peak_tflops: {{fp32: 1}}
  dtypes: [fp32]
  kv_cache_dtypes: [fp32]
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Serve a tiny model on two groups: `sick`, whose devices are those of a plugin, and `well`, the processor."""
    monkeypatch.setattr(claims, "_registered", {})
    for backend in (SickBackend, SickSim):
        register_backend(backend.name, backend)
    (tmp_path / "conf" / "chip").mkdir(parents=True)
    for name in ("sick", "sicksim"):
        (tmp_path / "conf" / "chip" / f"{name}.yaml").write_text(CHIP.format(name=name))
    model = write_tiny_model(tmp_path / "model")

    @contextmanager
    def serve(plugin: str) -> Iterator[Served]:
        words = [
            "chip=cpu",
            f"model={model}",
            "profiles=none",
            f"groups=[{{name: sick, chip: {plugin}, devices: ['{plugin}:0']}}, {{name: well, devices: ['cpu:0']}}]",
            "runtime.max_total_tokens=1024",
            "runtime.mem_fraction_static=0.4",
            "runtime.num_threads=1",
            "router.breaker_failures=2",
            "router.breaker_cool_down_s=0.05",
            "router.restart_wait_s=0.05",
            "router.restart_after_s=0.2",
        ]
        composed = compose("serve", words, tmp_path / "conf")
        deployment = load_deployment(composed.config, None, replica_configs(composed, tmp_path / "conf"))
        with serving_deployment(deployment) as running:
            yield running

    yield serve
    TROUBLE.now, TROUBLE.after = None, 0


def ask(served: Served, tokens: int = 4) -> str:
    body = {"prompt": "x", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    response = served.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def replica_of(served: Served) -> dict[str, Any]:
    replica: dict[str, Any] = served.get("/admin/groups").json()["groups"][0]["replicas"][0]
    return replica


@pytest.mark.parametrize(
    ("plugin", "trouble", "told"),
    [
        ("sick", nan, "op silu_and_mul of sick"),
        ("sick", torch_cpu_memory, "lower runtime.mem_fraction_static"),
        ("sick", torch_cuda_memory, "lower runtime.mem_fraction_static"),
        ("sicksim", accounted_memory, "bytes of memory free"),
    ],
    ids=["nan", "memory of torch's cpu", "memory of torch's cuda", "memory of a simulated card"],
)
def test_a_group_in_trouble_is_left_told_of_started_again_and_probed(
    served: Callable[[str], Any], plugin: str, trouble: Callable[[Any], None], told: str
) -> None:
    with served(plugin) as running:
        assert len({ask(running) for _ in range(2)}) <= (1 if plugin == "sick" else 2)
        # A stream that has begun ends with the error, and with nothing of the other group.
        running.client.patch("/admin/groups/weights", json={"sick": 1, "well": 0})
        body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
        TROUBLE.after, TROUBLE.now = 20, trouble
        with running.client.stream("POST", "/v1/completions", json=body) as response:
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
            assert json.loads(next(lines))["choices"]
            *_, last = lines
        error = json.loads(last)["error"]
        assert (error["code"], error["type"]) == ("engine_error", "server_error")
        assert told in error["message"]
        running.client.patch("/admin/groups/weights", json={"sick": 1, "well": 1})

        # What has not begun is answered by the other group, and the breaker opens.
        wait_until(lambda: bool(ask(running)) and opened(running))
        assert told in (replica_of(running)["last_error"] or "")
        wait_until(lambda: running.deployment.counters.counts()["in_flight"] == 0)
        counted = running.deployment.counters.counts()
        assert counted["failed"] == 1
        assert counted["received"] == counted["completed"] + 1

        # Probes fail, and so do starts, until the trouble is over.
        wait_until(lambda: bool(ask(running)) and replica_of(running)["state"] in ("failed", "restarting"))
        wait_until(lambda: running.deployment.fleet.supervisor._care["sick/0"].wait_s > 0.3)
        assert running.get("/health").json()["groups"]["well"] == "ok"
        TROUBLE.now = None
        wait_until(lambda: bool(ask(running)) and replica_of(running)["breaker"] == "closed")
        replica = replica_of(running)
        assert replica["restarts"] == 1
        before = replica["ended"]["completed"]
        wait_until(lambda: bool(ask(running)) and replica_of(running)["ended"]["completed"] > before)
        assert running.deployment.counters.counts()["failed"] == 1


def opened(served: Served) -> bool:
    return served.deployment.fleet.router.groups["sick"].replicas[0].breaker.opened > 0
