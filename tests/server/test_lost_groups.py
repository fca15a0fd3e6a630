"""What becomes of requests whose group is lost."""

import json
import threading
from collections.abc import Callable

import pytest

from sglk.cluster.flight import Flight
from tests.server.serving import ENDLESS, Served, answering, error_of, patient_runner, serving, wait_until


def killed(served: Served, group: str) -> None:
    served.deployment.fleet.engines[f"{group}/0"]._lose_runner("the card fell off the bus")


def restarted(served: Served, group: str) -> None:
    served.admin("POST", f"groups/{group}/restart", {"timeout_s": 0})


def hung(served: Served, group: str) -> None:
    served.deployment.fleet.router.give_up(served.deployment.fleet.router.groups[group].replicas[0], "no step for 9 s")


@pytest.mark.parametrize("lose", [killed, restarted, hung])
def test_what_is_lost_with_its_group_is_to_be_sent_again(lose: Callable[[Served, str], None]) -> None:
    runners = {"a": patient_runner(), "b": answering("b")}
    with serving(runners, weights={"a": 1, "b": 0}, router={"restart_wait_s": 600.0}) as served:
        plain = served.call("/v1/completions", ENDLESS)
        streamed = served.call("/v1/completions", {**ENDLESS, "stream": True})
        wait_until(lambda: all(flight.started for flight in flights(served)))
        served.admin("PATCH", "groups/weights", {"b": 1})
        lose(served, "a")
        response = plain.getresponse()
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        error = json.loads(response.read())["error"]
        assert (error["type"], error["code"]) == ("service_unavailable", "group_lost")
        assert error["message"].endswith("; send the request again")
        response = streamed.getresponse()
        *_, last, end = response.read().decode().split("\n\n")
        told = json.loads(last.removeprefix("data: "))
        assert (told["error"], told["request_id"]) == (error, response.headers["x-request-id"])
        assert end == ""
        wait_until(lambda: served.deployment.counters.counts()["failed"] == 2)
        plain.close()
        streamed.close()


def flights(served: Served) -> list[Flight]:
    wait_until(lambda: served.deployment.fleet.router.open_requests == 2)
    return list(served.deployment.fleet.router._flights.values())


def test_what_has_not_begun_when_its_group_hangs_is_answered_by_another() -> None:
    gate = threading.Event()
    with serving({"a": answering("a", gate=gate), "b": answering("b")}, weights={"a": 1, "b": 0}) as served:
        connections = [served.call("/v1/completions", {"prompt": "x", "temperature": 0}) for _ in range(4)]
        wait_until(lambda: served.deployment.fleet.router.open_requests == 4)
        served.admin("PATCH", "groups/weights", {"b": 1})
        hung(served, "a")
        gate.set()
        for connection in connections:
            response = connection.getresponse()
            assert response.status == 200
            response.read()
            connection.close()
        wait_until(lambda: served.deployment.counters.counts()["completed"] == 4)


def test_what_has_not_begun_and_nobody_else_can_take_is_to_be_sent_again() -> None:
    with serving(patient_runner(), router={"restart_wait_s": 600.0}, max_running_requests=1) as served:
        begun = served.call("/v1/completions", ENDLESS)
        wait_until(lambda: served.deployment.fleet.first.stats().running_requests == 1)
        waiting = served.call("/v1/completions", ENDLESS)
        wait_until(lambda: served.deployment.fleet.first.stats().queued_requests == 1)
        killed(served, "left")
        for connection in (begun, waiting):
            response = connection.getresponse()
            assert response.status == 503
            assert json.loads(response.read())["error"]["code"] == "group_lost"
            connection.close()
        refused = served.post("/v1/completions", {"prompt": "x"})
        assert error_of(refused, 503)["code"] == "no_group"
        assert refused.headers["retry-after"] == "5"


def test_what_force_cuts_off_is_aborted_streaming_or_not() -> None:
    with serving(patient_runner()) as served:
        connections = [served.call("/v1/completions", {**ENDLESS, "stream": stream}) for stream in (True, False)]
        wait_until(lambda: served.deployment.fleet.first.stats().running_requests == 2)
        served.post("/admin/runtime?force=true", {"max_running_requests": 3})
        streamed, plain = (connection.getresponse() for connection in connections)
        assert (streamed.status, plain.status) == (200, 503)
        assert b'"code":"aborted"' in streamed.read()
        assert json.loads(plain.read())["error"]["code"] == "aborted"
        wait_until(lambda: served.deployment.counters.counts()["aborted"] == 2)
        for connection in connections:
            connection.close()
