"""Several device groups behind one entry: weights, sessions, failures, draining, ramps."""

import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sglk.cluster.flight import Flight
from sglk.cluster.group import ReplicaEngine
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.errors import RequestError
from sglk.models.byte_level import EOS_ID
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import ENDLESS, Served, error_of, patient_runner, scripted_answers, serving, wait_until


def answering(text: str, **settings: object) -> ScriptedRunner:
    return ScriptedRunner(eos_token_ids=frozenset({EOS_ID}), script=scripted_answers(text), **settings)  # type: ignore[arg-type]


@pytest.fixture
def pair() -> Iterator[Served]:
    """Groups `a` and `b`, which answer with their own name."""
    with serving({"a": answering("a"), "b": answering("b")}, weights={"a": 80, "b": 20}) as served:
        yield served


def ask(served: Served, **headers: str) -> str:
    response = served.post("/v1/completions", {"prompt": "x", "temperature": 0}, headers=headers)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def admin(served: Served, method: str, path: str, body: object = None, status: int = 200) -> dict[str, object]:
    response = served.client.request(method, f"/admin/{path}", json=body)
    assert response.status_code == status, response.text
    found = response.json()
    assert isinstance(found, dict)
    return found


def test_requests_follow_the_weights_and_a_change_of_them(pair: Served) -> None:
    assert sorted(ask(pair) for _ in range(10)) == ["a"] * 8 + ["b"] * 2
    admin(pair, "PATCH", "groups/weights", {"a": 0, "b": 100})
    assert {ask(pair) for _ in range(5)} == {"b"}
    text = pair.get("/metrics").text
    assert 'sglk_group_weight{group="b",model="tiny"} 100.0' in text
    assert 'sglk_group_share_ratio{group="a",model="tiny"} 0.0' in text
    overview = admin(pair, "POST", "groups/rollback")
    assert overview["weights"]["shares"] == {"a": 80, "b": 20}  # type: ignore[index]
    assert [entry["source"] for entry in overview["history"]] == ["start", "admin", "rollback"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "body", [{}, {"a": 0, "b": 0}, {"a": -1}, {"c": 1}, {"weights": {"a": "x"}}, {"a": None}, {"weights": {}}]
)
def test_bad_weights_are_refused_and_change_nothing(pair: Served, body: dict[str, object]) -> None:
    error = error_of(pair.client.patch("/admin/groups/weights", json=body), 400)
    assert error["message"]
    assert admin(pair, "GET", "groups")["weights"]["shares"] == {"a": 80, "b": 20}  # type: ignore[index]


def test_weights_may_be_moved_on_condition_that_nobody_moved_them_before(pair: Served) -> None:
    seen = admin(pair, "GET", "groups")["weights"]["number"]  # type: ignore[index]
    admin(pair, "PATCH", "groups/weights", {"a": 1})
    late = {"weights": {"a": 5}, "if_number": seen}
    assert error_of(pair.client.patch("/admin/groups/weights", json=late), 409)["code"] == "weights_changed"
    assert admin(pair, "GET", "groups")["weights"]["shares"] == {"a": 1, "b": 20}  # type: ignore[index]
    admin(pair, "PATCH", "groups/weights", {**late, "if_number": seen + 1})
    for number in ("1", 1.5, True):
        error_of(pair.client.patch("/admin/groups/weights", json={**late, "if_number": number}), 400)


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 201, ["a"], "\x1b[2J"])
def test_a_reason_is_one_short_line(pair: Served, reason: object) -> None:
    body = {"weights": {"a": 5}, "reason": reason}
    assert error_of(pair.client.patch("/admin/groups/weights", json=body))["param"] == "reason"
    assert admin(pair, "GET", "groups")["weights"]["number"] == 0  # type: ignore[index]


def test_a_session_keeps_to_its_group_by_header_or_user(pair: Served) -> None:
    for number in range(8):
        assert len({ask(pair, **{"x-session-id": f"s{number}"}) for _ in range(4)}) == 1
        bodies = [{"prompt": "x", "temperature": 0, "user": f"u{number}"} for _ in range(4)]
        assert len({pair.post("/v1/completions", body).json()["choices"][0]["text"] for body in bodies}) == 1


def test_a_group_that_fails_before_a_token_is_not_noticed_streaming_or_not() -> None:
    sick = answering("a", spoils=lambda row: "on fire")
    with serving({"a": sick, "b": answering("bbbb")}, weights={"a": 1, "b": 1}) as served:
        texts = [ask(served) for _ in range(4)]
        assert texts == ["bbbb"] * 4
        chunks = served.events(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
        )
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert sum("role" in chunk["choices"][0]["delta"] for chunk in chunks) == 1
        groups = {group["name"]: group for group in admin(served, "GET", "groups")["groups"]}  # type: ignore[attr-defined]
        assert groups["a"]["replicas"][0]["moved"] >= 2
        assert groups["a"]["replicas"][0]["ended"]["failed"] >= 2
        assert groups["b"]["replicas"][0]["ended"] == {"completed": 5}


def test_a_group_that_refuses_before_the_headers_is_not_noticed_streaming_or_not() -> None:
    runners = {"a": patient_runner(), "b": answering("bbbb")}
    with serving(runners, weights={"a": 1, "b": 0}) as served:
        replica = served.deployment.fleet.router.groups["a"].replicas[0]
        running = served.call("/v1/completions", ENDLESS)
        wait_until(lambda: served.deployment.fleet.first.stats().running_requests == 1)
        # Still alive, and what it had begun goes on; but it takes nothing new.
        stopping = threading.Thread(target=replica.engine.shutdown, args=(30.0,))
        stopping.start()
        wait_until(lambda: refuses(replica.engine))
        admin(served, "PATCH", "groups/weights", {"a": 100, "b": 1})
        assert replica.ready
        assert ask(served) == "bbbb"
        question = {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
        chunks = served.events("/v1/chat/completions", question)
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert sum("role" in chunk["choices"][0]["delta"] for chunk in chunks) == 1
        told = admin(served, "GET", "groups")["groups"][0]  # type: ignore[index]
        assert (told["replicas"][0]["moved"], told["replicas"][0]["ended"]) == (2, {"failed": 2})
        assert told["recent"]["error_rate"] == 1
        running.close()
        stopping.join(30)


def refuses(engine: ReplicaEngine) -> bool:
    try:
        engine.submit(GenerateRequest("late", (1,), SamplingParams(max_new_tokens=1)), lambda output: None)
    except RequestError as error:
        return error.status == 503
    return False


def test_a_group_that_fails_in_mid_stream_ends_it_with_an_error_and_nothing_of_the_other() -> None:
    def after_five(row: BatchRow) -> str | None:
        return "on fire" if row.num_generated >= 5 else None

    runners = {"a": answering("aaaaaaaaaa", spoils=after_five), "b": answering("b")}
    with serving(runners, weights={"a": 1, "b": 0}) as served:
        body = {"prompt": "x", "temperature": 0, "stream": True}
        lines = served.post("/v1/completions", body).text.split("\n\n")
        assert lines[-1] == ""
        assert "on fire" in lines[-2]
        assert "[DONE]" not in "".join(lines)
        assert "".join(lines).count('"text":"a"') == 5
        assert '"b"' not in "".join(lines)
        assert error_of(served.post("/v1/completions", {"prompt": "x", "temperature": 0}), 500)["message"]


def test_a_group_that_stalls_is_found_out_streaming_or_not() -> None:
    stall, go_on = threading.Event(), threading.Event()

    def hold(step: int, batch: Batch) -> None:
        if any(row.num_generated >= 3 for row in batch.rows) and not stall.is_set():
            go_on.wait(30)

    runners = {"a": answering("aaaaaaaaaa", before_step=hold), "b": answering("b")}
    router = {"step_timeout_s": 0.2, "restart_wait_s": 600.0}
    with serving(runners, weights={"a": 1, "b": 0}, router=router) as served:
        text = served.post("/v1/completions", {"prompt": "x", "temperature": 0, "stream": True}).text
        assert "a step has been running" in text
        assert "[DONE]" not in text
        assert text.count('"text":"a"') == 3
        assert '"b"' not in text
        # The group is out, so that nobody is left.
        assert (
            "a failed: replica a/0: a step has been"
            in error_of(served.post("/v1/completions", {"prompt": "x"}), 503)["message"]
        )
        admin(served, "PATCH", "groups/weights", {"b": 1})
        assert [ask(served) for _ in range(4)] == ["b"] * 4
        replica = admin(served, "GET", "groups")["groups"][0]["replicas"][0]  # type: ignore[index]
        assert (replica["ended"], replica["state"]) == ({"failed": 1}, "failed")
        assert 'sglk_router_requests_total{group="a",model="tiny",outcome="failed",replica="a/0"} 1.0' in (
            served.get("/metrics").text
        )
        stall.set()
        go_on.set()


def test_only_failures_of_its_own_open_a_breaker_and_only_answers_close_it() -> None:
    sick = threading.Event()
    sick.set()
    runner = answering("a", spoils=lambda row: "out of memory" if sick.is_set() else None)
    router = {"breaker_failures": 3, "breaker_cool_down_s": 0.2, "restart_wait_s": 600.0}
    with serving({"a": runner, "b": answering("b")}, weights={"a": 1, "b": 0}, router=router) as served:
        breaker = served.deployment.fleet.router.groups["a"].replicas[0].breaker

        def good() -> int:
            return served.post("/v1/completions", {"prompt": "x", "temperature": 0}).status_code

        def bad() -> int:
            return served.post("/v1/completions", {"prompt": "x" * 500}).status_code

        assert [good(), good(), bad(), bad()] == [500, 500, 400, 400]
        assert breaker.state == "closed"
        assert good() == 500
        assert breaker.state == "open"
        assert served.get("/health").json()["groups"]["a"] == "circuit breaker open: the step failed: out of memory"
        wait_until(lambda: breaker.state == "half_open")
        assert bad() == 400
        assert breaker.state == "half_open"
        assert (
            'sglk_breaker_state{group="a",model="tiny",replica="a/0",state="half_open"} 1.0'
            in served.get("/metrics").text
        )
        told = admin(served, "GET", "groups")["groups"][0]["replicas"][0]  # type: ignore[index]
        assert (told["breaker"], told["last_error"]) == ("half_open", "the step failed: out of memory")
        sick.clear()
        assert good() == 200
        assert breaker.state == "closed"


def test_draining_lets_streams_finish_and_sends_new_requests_elsewhere() -> None:
    gate = threading.Event()
    with serving({"a": answering("a", gate=gate), "b": answering("b")}, weights={"a": 1, "b": 0}) as served:
        body = {"prompt": "x", "temperature": 0}
        connections = [served.call("/v1/completions", {**body, "stream": index % 2 == 0}) for index in range(10)]
        wait_until(lambda: served.deployment.fleet.router.open_requests == 10)
        admin(served, "PATCH", "groups/weights", {"b": 1})
        assert admin(served, "POST", "groups/a/drain", {"timeout_s": 600})["state"] == "draining"
        assert admin(served, "POST", "groups/a/drain")["state"] == "draining"
        assert [ask(served) for _ in range(50)] == ["b"] * 50
        gate.set()
        for connection in connections:
            assert b'"text":"a"' in connection.getresponse().read()
            connection.close()
        wait_until(lambda: admin(served, "GET", "groups")["groups"][0]["state"] == "drained")  # type: ignore[index]
        assert admin(served, "POST", "groups/a/undrain")["state"] == "serving"


def test_what_outlasts_the_drain_ends_with_an_error() -> None:
    with serving({"a": patient_runner(), "b": answering("b")}, weights={"a": 1, "b": 0}) as served:
        connection = served.call("/v1/completions", ENDLESS)
        wait_until(lambda: served.deployment.fleet.router.open_requests == 1)
        admin(served, "PATCH", "groups/weights", {"b": 1})
        admin(served, "POST", "groups/a/drain", {"timeout_s": 0})
        response = connection.getresponse()
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        error = json.loads(response.read())["error"]
        assert (error["type"], error["code"]) == ("service_unavailable", "group_lost")
        assert "was drained before the answer was complete; send the request again" in error["message"]
        connection.close()
        assert admin(served, "GET", "groups")["groups"][0]["state"] == "drained"  # type: ignore[index]


def killed(served: Served, group: str) -> None:
    served.deployment.fleet.engines[f"{group}/0"]._lose_runner("the card fell off the bus")


def restarted(served: Served, group: str) -> None:
    admin(served, "POST", f"groups/{group}/restart", {"timeout_s": 0})


def hung(served: Served, group: str) -> None:
    served.deployment.fleet.router.give_up(served.deployment.fleet.router.groups[group].replicas[0], "no step for 9 s")


@pytest.mark.parametrize("lose", [killed, restarted, hung])
def test_what_is_lost_with_its_group_is_to_be_sent_again(lose: Callable[[Served, str], None]) -> None:
    runners = {"a": patient_runner(), "b": answering("b")}
    with serving(runners, weights={"a": 1, "b": 0}, router={"restart_wait_s": 600.0}) as served:
        plain = served.call("/v1/completions", ENDLESS)
        streamed = served.call("/v1/completions", {**ENDLESS, "stream": True})
        wait_until(lambda: all(flight.started for flight in flights(served)))
        admin(served, "PATCH", "groups/weights", {"b": 1})
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
        admin(served, "PATCH", "groups/weights", {"b": 1})
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


def test_many_drains_do_not_keep_the_server_from_its_other_work() -> None:
    with serving({"a": patient_runner(), "b": answering("b", context_length=50_000, kv_tokens=50_000)}) as served:
        admin(served, "PATCH", "groups/weights", {"a": 1, "b": 0})
        connection = served.call("/v1/completions", ENDLESS)
        wait_until(lambda: served.deployment.fleet.router.open_requests == 1)
        admin(served, "PATCH", "groups/weights", {"b": 1})
        for _ in range(40):
            admin(served, "POST", "groups/a/drain", {"timeout_s": 3600})
        # A long text is tokenised in a thread.
        assert served.post("/v1/completions", {"prompt": "x" * 20_000, "max_tokens": 1}).status_code == 200
        error_of(served.post("/admin/groups/a/drain", {"timeout_s": 1e300}), 400)
        connection.close()


def test_the_last_order_for_a_group_holds() -> None:
    with serving({"a": patient_runner(), "b": answering("b")}, weights={"a": 1, "b": 0}) as served:
        connection = served.call("/v1/completions", ENDLESS)
        wait_until(lambda: served.deployment.fleet.router.open_requests == 1)
        admin(served, "PATCH", "groups/weights", {"b": 1})
        admin(served, "POST", "groups/a/restart", {"timeout_s": 0.3})
        assert admin(served, "POST", "groups/a/undrain")["state"] == "serving"
        admin(served, "POST", "groups/a/drain", {"timeout_s": 3600})
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 0.5)
        assert admin(served, "GET", "groups")["groups"][0]["state"] == "draining"  # type: ignore[index]
        assert served.deployment.fleet.router.groups["a"].replicas[0].counters.restarts == 0
        admin(served, "POST", "groups/a/drain", {"timeout_s": 0})
        assert connection.getresponse().status == 503
        connection.close()


@pytest.mark.parametrize("share", [10**400, 1e300, 1e-300, "x" * 10**6, [[1] * 10**5]])
def test_weights_that_no_sum_survives_are_refused_in_few_words(pair: Served, share: object) -> None:
    for body in ({"a": share}, {"weights": {"a": share}}):
        error = error_of(pair.client.patch("/admin/groups/weights", json=body), 400)
        assert len(error["message"]) < 300
    error = error_of(pair.client.patch("/admin/groups/weights", json={"x" * 10**5: 1}), 400)
    assert len(error["message"]) < 300


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
        gate.set()
        assert connection.getresponse().status == 200
        connection.close()
        assert served.post("/admin/runtime", {"max_running_requests": 3}).status_code == 200


def test_a_group_that_is_down_leaves_every_route_usable() -> None:
    with serving({"a": answering("a"), "b": answering("b")}, router={"restart_wait_s": 600.0}) as served:
        served.deployment.fleet.first.shutdown()
        wait_until(lambda: admin(served, "GET", "groups")["groups"][0]["replicas"][0]["state"] == "failed")  # type: ignore[index]
        for path in ("/health", "/health_generate", "/metrics", "/server_info", "/get_load", "/v1/models", "/get_ops"):
            assert served.get(path).status_code in (200, 404), path
        assert served.post("/flush_cache").status_code == 200
        replicas = admin(served, "POST", "runtime", {"max_running_requests": 3})["replicas"]
        assert replicas["b/0"]["runtime"]["max_running_requests"] == 3  # type: ignore[index]
        # The one that is down takes it with its next start.
        assert served.deployment.fleet.configs["a/0"].config.runtime.max_running_requests == 3
        admin(served, "PATCH", "groups/weights", {"a": 1, "b": 0})
        assert served.get("/health").json()["groups"]["a"].startswith("failed")
        assert served.get("/health").status_code == 503
        assert "requests now" in error_of(served.post("/v1/completions", {"prompt": "x"}), 503)["message"]


def test_the_last_group_is_drained_by_force_alone_and_then_the_answer_is_503(pair: Served) -> None:
    admin(pair, "POST", "groups/a/drain")
    assert error_of(pair.post("/admin/groups/b/drain", {}), 409)["code"] == "last_group"
    admin(pair, "POST", "groups/b/drain", {"force": True})
    response = pair.post("/v1/completions", {"prompt": "x"})
    assert int(response.headers["retry-after"]) >= 1
    assert "takes requests now" in error_of(response, 503)["message"]
    assert pair.get("/health").json()["groups"] == {"a": "drained", "b": "drained"}
    assert pair.get("/health").status_code == 503


def test_bad_requests_take_no_group_out(pair: Served) -> None:
    for _ in range(10):
        error_of(pair.post("/v1/completions", {"prompt": "x" * 500}), 400)
    assert sorted(ask(pair) for _ in range(10)) == ["a"] * 8 + ["b"] * 2


def test_too_many_requests_are_refused_before_any_group_and_take_none_out() -> None:
    gate = threading.Event()
    settings = {"server": {"max_queued_requests": 1}, "router": {"breaker_failures": 1}, "max_running_requests": 1}
    with serving({"a": answering("a", gate=gate), "b": answering("b", gate=gate)}, **settings) as served:
        body = {"prompt": "x", "temperature": 0}
        connections = [served.call("/v1/completions", body) for _ in range(3)]
        wait_until(lambda: served.deployment.bridge.open_requests == 3)
        for _ in range(10):
            refused = served.post("/v1/completions", body)
            assert error_of(refused, 429)["code"] == "queue_full"
            assert refused.headers["retry-after"] == "1"
        gate.set()
        for connection in connections:
            assert connection.getresponse().status == 200
            connection.close()
        replicas = served.deployment.fleet.router.replicas
        assert [replica.breaker.state for replica in replicas] == ["closed", "closed"]
        assert sum(replica.counters.picks for replica in replicas) == 3
        assert served.deployment.counters.counts()["refused"] == 10


def test_a_restart_brings_the_group_back_by_itself() -> None:
    with serving({"a": answering("a"), "b": answering("b")}) as served:
        admin(served, "POST", "groups/a/restart", {"timeout_s": 1})
        replica = served.deployment.fleet.router.groups["a"].replicas[0]
        wait_until(lambda: replica.counters.restarts == 1)
        wait_until(lambda: ask(served) == "a")


def test_a_ramp_is_followed_shown_and_stopped(pair: Served) -> None:
    plan = {"group": "b", "to": 60, "step": 20, "every_s": 3600, "slo": "ttft_p99<2s"}
    assert admin(pair, "POST", "ramp", plan)["share"] == 40
    assert error_of(pair.post("/admin/ramp", plan), 409)["code"] == "ramp_in_progress"
    assert admin(pair, "GET", "ramp")["state"] == "moving"
    assert admin(pair, "DELETE", "ramp")["state"] == "stopped"
    assert admin(pair, "GET", "groups")["weights"]["percent"] == {"a": 60, "b": 40}  # type: ignore[index]
    assert admin(pair, "POST", "groups/rollback")["weights"]["percent"] == {"a": 80, "b": 20}  # type: ignore[index]
    error_of(pair.post("/admin/ramp", {**plan, "slo": "ttft<2s"}), 400)
    error_of(pair.post("/admin/ramp", {**plan, "step": "much"}), 400)


def test_a_ramp_that_breaks_its_limits_goes_back_with_the_reason_in_log_and_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runners = {"a": answering("a"), "b": answering("bbbb", spoils=lambda row: "sick" if row.num_generated else None)}
    with serving(runners, weights={"a": 90, "b": 10}, router={"breaker_failures": 99}) as served:
        plan = {"group": "b", "to": 80, "step": 40, "every_s": 3600, "slo": "error_rate<1%", "min_requests": 2}
        admin(served, "POST", "ramp", plan)
        for _ in range(8):
            served.post("/v1/completions", {"prompt": "x", "temperature": 0})
        wait_until(lambda: admin(served, "GET", "ramp")["state"] == "rolled_back")
        assert admin(served, "GET", "groups")["weights"]["percent"] == {"a": 90, "b": 10}  # type: ignore[index]
        told = 'sglk_ramp_rolled_back{group="b",model="tiny",reason="error_rate"} 1.0'
        assert told in served.get("/metrics").text
    assert "ramp of group b: rolled back (error_rate is 100.00%, the limit is error_rate<1%)" in caplog.text


def test_metrics_tell_groups_and_replicas_apart(pair: Served) -> None:
    for _ in range(5):
        ask(pair)
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
    replicas = admin(pair, "GET", "runtime")["replicas"]
    assert [replicas[name]["runtime"]["max_running_requests"] for name in ("a/0", "b/0")] == [32, 3]  # type: ignore[index]
