from sglk.engine.batch import Batch
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import ENDLESS, Served, error_of, patient_runner, serving, wait_until


def test_a_running_engine_is_healthy(served: Served) -> None:
    for path in ("/health", "/health_generate"):
        response = served.get(path)
        assert response.status_code == 200
        assert response.json() == {"status": "ok", "groups": {"left": "ok"}}


def test_load_balancers_may_ask_by_head(served: Served) -> None:
    assert served.client.head("/health").status_code == 200


def broken_step(_: int, batch: Batch) -> None:
    raise RuntimeError("device lost")


def test_a_failing_device_fails_the_probe_and_then_the_server() -> None:
    with serving(ScriptedRunner(before_step=broken_step)) as served:
        assert served.get("/health").status_code == 200
        response = served.get("/health_generate")
        assert response.status_code == 503
        assert "device lost" in response.json()["reason"]

        error = error_of(served.post("/v1/completions", {"prompt": "x"}), 500)
        assert error["type"] == "server_error"
        assert "device lost" in error["message"]
        chunks = served.events("/v1/completions", {"prompt": "x"})
        assert "device lost" in chunks[-1]["error"]["message"]
        assert "device lost" in served.events("/generate", {"text": "x"})[-1]["error"]["message"]

        def dead() -> bool:
            served.post("/v1/completions", {"prompt": "x"})
            return not served.deployment.fleet.first.is_alive

        wait_until(dead)
        response = served.get("/health")
        assert response.status_code == 503
        assert "device lost" in response.json()["groups"]["left"]
        error_of(served.post("/v1/completions", {"prompt": "x"}), 503)


def test_a_server_that_shuts_down_is_not_ready() -> None:
    with serving() as served:
        served.deployment.draining = True

        assert served.get("/health").status_code == 503


def test_liveness_needs_no_free_slot() -> None:
    with serving(patient_runner(), max_running_requests=16) as served:
        connections = [served.call("/v1/completions", {**ENDLESS, "stream": True}) for _ in range(64)]
        wait_until(lambda: served.deployment.bridge.open_requests == 64)
        for _ in range(20):
            assert served.get("/health").status_code == 200
            assert served.deployment.bridge.open_requests == 64
        for connection in connections:
            connection.close()
        served.wait_idle()
