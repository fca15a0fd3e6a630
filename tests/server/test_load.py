"""A server under load, stuck in a step or without its engine: probes and gauges tell the truth at once."""

import json
import threading
from collections.abc import Iterator

import pytest

from sglk.engine.batch import Batch, RowResult
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import held
from tests.server.serving import ENDLESS, Served, patient_runner, serving, wait_until


class Stuck:
    """A runner's step that neither returns nor fails, from when `armed` is set until `released` is."""

    def __init__(self) -> None:
        self.armed = threading.Event()
        self.entered = threading.Event()
        self.released = threading.Event()

    def __call__(self, step: int, batch: Batch) -> None:
        if self.armed.is_set():
            self.entered.set()
            assert self.released.wait(120)


@pytest.fixture
def stuck() -> Iterator[tuple[Served, Stuck]]:
    """A server whose engine hangs in a step, 64 requests on it."""
    step = Stuck()
    step.armed.set()
    with serving(patient_runner(before_step=step), max_running_requests=8) as served:
        connections = [served.call("/v1/completions", {**ENDLESS, "stream": index % 2 == 0}) for index in range(64)]
        wait_until(lambda: served.deployment.bridge.open_requests == 64)
        assert step.entered.wait(120)
        try:
            yield served, step
        finally:
            step.armed.clear()
            step.released.set()
            for connection in connections:
                connection.close()
            served.wait_idle()


def test_probes_and_metrics_answer_while_the_engine_is_in_a_step(stuck: tuple[Served, Stuck]) -> None:
    served, step = stuck
    for _ in range(20):
        assert served.get("/health").status_code == 200
    assert served.get("/v1/models").status_code == 200
    gauges = served.samples()

    # Still in that one step: nothing above had to wait for it.
    assert not step.released.is_set()
    assert gauges["sglk_running_requests"] + gauges["sglk_queued_requests"] == 64
    assert gauges["sglk_requests_in_flight"] == 64


def test_clients_that_leave_a_stuck_engine_are_counted_and_freed_with_its_step(stuck: tuple[Served, Stuck]) -> None:
    served, step = stuck
    served.deployment.bridge.abort_all()
    step.armed.clear()
    step.released.set()
    served.wait_idle()

    assert served.post("/v1/completions", {"prompt": "y", "max_tokens": 1}).status_code == 200


def test_an_engine_whose_thread_dies_fails_readiness_at_once_and_all_that_wait() -> None:
    class Broken(ScriptedRunner):
        broken = False

        def run(self, batch: Batch) -> list[RowResult]:
            return [] if self.broken else super().run(batch)

    runner = Broken(context_length=1_000_000, kv_tokens=1_000_000)
    with serving(runner, max_running_requests=2) as served:
        connections = [served.call("/v1/completions", ENDLESS) for _ in range(4)]
        wait_until(lambda: served.deployment.fleet.first.stats().queued_requests == 2)
        assert served.get("/health").status_code == 200
        # A result short of a row is a broken promise, not a failed step: the engine cannot go on.
        runner.broken = True
        wait_until(lambda: served.get("/health").status_code == 503)

        for connection in connections:
            with connection.getresponse() as response:
                assert response.status == 503
            connection.close()
        body = served.get("/health").json()
        assert body["status"] == "unavailable"
        assert "the engine died" in body["groups"]["left"]
        assert served.post("/v1/completions", {"prompt": "x"}).status_code == 503
        gauges = served.samples()
        assert gauges["sglk_running_requests"] == gauges["sglk_queued_requests"] == 0


def test_fifty_clients_that_hang_up_leave_nothing_behind() -> None:
    with serving(patient_runner(), max_running_requests=4) as served:
        for _ in range(5):
            connections = [served.call("/v1/completions", {**ENDLESS, "stream": index % 2 == 0}) for index in range(10)]
            wait_until(lambda: served.deployment.fleet.first.stats().queued_requests == 6)
            for connection in connections:
                connection.close()
            served.wait_idle()
        wait_until(lambda: served.samples()["sglk_requests_in_flight"] == 0)
        counts = served.samples()

        assert counts["sglk_requests_received_total"] == counts["sglk_requests_aborted_total"] == 50
        assert served.post("/v1/completions", {"prompt": "y", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("page_size", [1, 16])
def test_requests_that_fill_the_kv_pool_end_with_what_they_have(page_size: int) -> None:
    body = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
    settings = {"max_total_tokens": 64, "page_size": page_size, "schedule_conservativeness": 0.01}
    with serving(**settings) as served:
        alone = served.post("/v1/completions", {**body, "prompt": "12345678"}).json()
        with held(served.deployment.fleet.first):
            connection = served.call("/v1/completions", {**body, "prompt": ["12345678", "87654321"]})
            wait_until(lambda: served.deployment.fleet.first.stats().queued_requests == 2)
        both = json.loads(connection.getresponse().read())
        choices = [*alone["choices"], *both["choices"]]

        assert [choice["finish_reason"] for choice in choices] == ["length"] * 3
        assert (alone["usage"]["completion_tokens"], both["usage"]["completion_tokens"]) == (56, 112)
        assert choices[1]["text"] == choices[0]["text"]
        assert served.deployment.fleet.first.stats().retractions > 0
        served.wait_idle()
        assert served.deployment.fleet.first.flush_cache()
        stats = served.deployment.fleet.first.stats()
        assert (stats.kv_used_tokens, stats.kv_cached_tokens) == (0, 0)
        assert served.post("/v1/completions", {"prompt": "y", "max_tokens": 1}).status_code == 200
