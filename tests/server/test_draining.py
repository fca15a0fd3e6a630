"""Groups that are drained, restarted and taken back."""

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from sglk.server.orders import Order
from tests.server.serving import ENDLESS, Served, answering, error_of, patient_runner, serving, wait_until

Leaving = tuple[Served, HTTPConnection]


@pytest.fixture
def leaving() -> Iterator[Leaving]:
    """Group `a` is at work on a request without an end, the one that is returned; new ones go to `b`."""
    runners = {"a": patient_runner(), "b": answering("b", context_length=50_000, kv_tokens=50_000)}
    with serving(runners, weights={"a": 1, "b": 0}) as served:
        connection = served.call("/v1/completions", ENDLESS)
        wait_until(lambda: served.deployment.fleet.router.open_requests == 1)
        served.admin("PATCH", "groups/weights", {"b": 1})
        yield served, connection


def test_draining_lets_streams_finish_and_sends_new_requests_elsewhere() -> None:
    gate = threading.Event()
    with serving({"a": answering("a", gate=gate), "b": answering("b")}, weights={"a": 1, "b": 0}) as served:
        body = {"prompt": "x", "temperature": 0}
        connections = [served.call("/v1/completions", {**body, "stream": index % 2 == 0}) for index in range(10)]
        wait_until(lambda: served.deployment.fleet.router.open_requests == 10)
        served.admin("PATCH", "groups/weights", {"b": 1})
        assert served.admin("POST", "groups/a/drain", {"timeout_s": 600})["state"] == "draining"
        assert served.admin("POST", "groups/a/drain")["state"] == "draining"
        assert [served.ask() for _ in range(50)] == ["b"] * 50
        gate.set()
        for connection in connections:
            assert b'"text":"a"' in connection.getresponse().read()
            connection.close()
        wait_until(lambda: served.admin("GET", "groups")["groups"][0]["state"] == "drained")
        assert served.admin("POST", "groups/a/undrain")["state"] == "serving"


def test_what_outlasts_the_drain_ends_with_an_error(leaving: Leaving) -> None:
    served, connection = leaving
    served.admin("POST", "groups/a/drain", {"timeout_s": 0})
    response = connection.getresponse()
    assert (response.status, response.headers["retry-after"]) == (503, "1")
    error = json.loads(response.read())["error"]
    assert (error["type"], error["code"]) == ("service_unavailable", "group_lost")
    assert "was drained before the answer was complete; send the request again" in error["message"]
    assert served.admin("GET", "groups")["groups"][0]["state"] == "drained"


def test_many_drains_do_not_keep_the_server_from_its_other_work(leaving: Leaving) -> None:
    served, _ = leaving
    for _ in range(40):
        served.admin("POST", "groups/a/drain", {"timeout_s": 3600})
    # A long text is tokenised in a thread.
    assert served.post("/v1/completions", {"prompt": "x" * 20_000, "max_tokens": 1}).status_code == 200
    error_of(served.post("/admin/groups/a/drain", {"timeout_s": 1e300}), 400)


def test_the_last_order_for_a_group_holds(leaving: Leaving) -> None:
    served, connection = leaving
    under_way = served.deployment.orders._under_way
    served.admin("POST", "groups/a/restart", {"timeout_s": 3600})
    assert served.admin("POST", "groups/a/undrain")["state"] == "serving"
    assert not under_way
    served.admin("POST", "groups/a/drain", {"timeout_s": 3600})
    assert [order for order, _ in under_way.values()] == [Order("drain", 3600)]
    assert served.admin("GET", "groups")["groups"][0]["state"] == "draining"
    served.admin("POST", "groups/a/drain", {"timeout_s": 0})
    assert connection.getresponse().status == 503


def test_the_last_group_is_drained_by_force_alone_and_then_the_answer_is_503(pair: Served) -> None:
    pair.admin("POST", "groups/a/drain")
    assert error_of(pair.post("/admin/groups/b/drain", {}), 409)["code"] == "last_group"
    pair.admin("POST", "groups/b/drain", {"force": True})
    response = pair.post("/v1/completions", {"prompt": "x"})
    assert int(response.headers["retry-after"]) >= 1
    assert "takes requests now" in error_of(response, 503)["message"]
    assert pair.get("/health").json()["groups"] == {"a": "drained", "b": "drained"}
    assert pair.get("/health").status_code == 503


def test_a_restart_brings_the_group_back_by_itself() -> None:
    with serving({"a": answering("a"), "b": answering("b")}) as served:
        served.admin("POST", "groups/a/restart", {"timeout_s": 1})
        replica = served.deployment.fleet.router.groups["a"].replicas[0]
        wait_until(lambda: replica.counters.restarts == 1)
        wait_until(lambda: served.ask() == "a")
