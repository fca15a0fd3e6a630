"""Several device groups behind one entry."""

import threading

import pytest

from tests.server.serving import Served, answering, error_of, serving, wait_until


def test_a_session_keeps_to_its_group_by_header_or_user(pair: Served) -> None:
    for number in range(8):
        assert len({pair.ask(**{"x-session-id": f"s{number}"}) for _ in range(4)}) == 1
        bodies = [{"prompt": "x", "temperature": 0, "user": f"u{number}"} for _ in range(4)]
        assert len({pair.post("/v1/completions", body).json()["choices"][0]["text"] for body in bodies}) == 1


def test_a_group_that_hangs_holds_up_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglk.engine.engine.CALL_TIMEOUT_S", 0.2)
    gate = threading.Event()
    with serving({"a": answering("a", gate=gate), "b": answering("b")}, weights={"a": 1, "b": 0}) as served:
        connection = served.call("/v1/completions", {"prompt": "x", "temperature": 0})
        wait_until(lambda: served.deployment.fleet.first.stuck_s > 0)
        assert error_of(served.post("/flush_cache"), 503)["code"] == "engine_busy"
        error_of(served.post("/admin/runtime", {"max_running_requests": 3}), 503)
        for path in ("/health", "/metrics", "/server_info", "/get_load", "/admin/groups", "/admin/runtime"):
            assert served.get(path).status_code == 200
        monkeypatch.undo()
        gate.set()
        assert connection.getresponse().status == 200
        connection.close()
        assert served.post("/admin/runtime", {"max_running_requests": 3}).status_code == 200


def test_a_group_that_is_down_leaves_every_route_usable() -> None:
    with serving({"a": answering("a"), "b": answering("b")}, router={"restart_wait_s": 600.0}) as served:
        served.deployment.fleet.first.shutdown()
        wait_until(lambda: served.admin("GET", "groups")["groups"][0]["replicas"][0]["state"] == "failed")
        for path in ("/health", "/health_generate", "/metrics", "/server_info", "/get_load", "/v1/models", "/get_ops"):
            assert served.get(path).status_code in (200, 404), path
        assert served.post("/flush_cache").status_code == 200
        replicas = served.admin("POST", "runtime", {"max_running_requests": 3})["replicas"]
        assert replicas["b/0"]["runtime"]["max_running_requests"] == 3
        # The one that is down takes it with its next start.
        assert served.deployment.fleet.configs["a/0"].config.runtime.max_running_requests == 3
        served.admin("PATCH", "groups/weights", {"a": 1, "b": 0})
        assert served.get("/health").json()["groups"]["a"].startswith("failed")
        assert served.get("/health").status_code == 503
        assert "requests now" in error_of(served.post("/v1/completions", {"prompt": "x"}), 503)["message"]


def test_metrics_tell_groups_and_replicas_apart(pair: Served) -> None:
    for _ in range(5):
        pair.ask()
    text = pair.get("/metrics").text
    assert 'sglk_router_picks_total{group="a",model="tiny",replica="a/0"} 4.0' in text
    assert 'sglk_time_to_first_token_seconds_count{group="b",model="tiny",replica="b/0"} 1.0' in text
    assert 'sglang:num_running_reqs{group="b",model_name="tiny",replica="b/0"} 0.0' in text
    assert 'sglk_group_share_ratio{group="a",model="tiny"} 0.8' in text


def test_unknown_groups_are_named(pair: Served) -> None:
    for path in ("groups/bb/drain", "groups/bb/undrain", "groups/bb/restart"):
        assert "did you mean 'b'" in error_of(pair.post(f"/admin/{path}", {}), 404)["message"]


def test_runtime_parameters_of_one_group_change_alone(pair: Served) -> None:
    pair.post("/admin/runtime?group=b", {"max_running_requests": 3})
    replicas = pair.admin("GET", "runtime")["replicas"]
    assert [replicas[name]["runtime"]["max_running_requests"] for name in ("a/0", "b/0")] == [32, 3]
