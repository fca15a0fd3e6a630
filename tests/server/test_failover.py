"""A group that fails, refuses or stalls, beside one that does not."""

import threading

import pytest

from sglk.cluster.group import ReplicaEngine
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.engine import Engine
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.errors import RequestError
from tests.cluster.fleet import Clock
from tests.server.serving import ENDLESS, Served, answering, error_of, patient_runner, serving, wait_until


def test_a_group_that_fails_before_a_token_is_not_noticed_streaming_or_not() -> None:
    sick = answering("a", spoils=lambda row: "on fire")
    with serving({"a": sick, "b": answering("bbbb")}, weights={"a": 1, "b": 1}) as served:
        texts = [served.ask() for _ in range(4)]
        assert texts == ["bbbb"] * 4
        chunks = served.events(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
        )
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert sum("role" in chunk["choices"][0]["delta"] for chunk in chunks) == 1
        groups = {group["name"]: group for group in served.admin("GET", "groups")["groups"]}
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
        stopping = threading.Thread(target=replica.engine.shutdown, args=(600.0,))
        stopping.start()
        wait_until(lambda: refuses(replica.engine))
        served.admin("PATCH", "groups/weights", {"a": 100, "b": 1})
        assert replica.ready
        assert served.ask() == "bbbb"
        question = {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
        chunks = served.events("/v1/chat/completions", question)
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert sum("role" in chunk["choices"][0]["delta"] for chunk in chunks) == 1
        told = served.admin("GET", "groups")["groups"][0]
        assert (told["replicas"][0]["moved"], told["replicas"][0]["ended"]) == (2, {"failed": 2})
        assert told["recent"]["error_rate"] == 1
        running.close()
        stopping.join(120)


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


def test_a_group_that_stalls_is_found_out_streaming_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    held, go_on = threading.Event(), threading.Event()

    def hold(step: int, batch: Batch) -> None:
        if any(row.num_generated >= 3 for row in batch.rows):
            held.set()
            go_on.wait(120)

    runners = {"a": answering("aaaaaaaaaa", before_step=hold), "b": answering("b")}
    with serving(runners, weights={"a": 1, "b": 0}, router={"restart_wait_s": 600.0}) as served:
        stuck = served.deployment.fleet.first
        monkeypatch.setattr(Engine, "stuck_s", property(lambda each: 121.0 * (each is stuck and held.is_set())))
        text = served.post("/v1/completions", {"prompt": "x", "temperature": 0, "stream": True}).text
        assert "nothing has come from it for 121 s" in text
        assert "[DONE]" not in text
        assert text.count('"text":"a"') == 3
        assert '"b"' not in text
        # The group is out, so that nobody is left.
        assert (
            "a failed: replica a/0: nothing has come from it"
            in error_of(served.post("/v1/completions", {"prompt": "x"}), 503)["message"]
        )
        served.admin("PATCH", "groups/weights", {"b": 1})
        assert [served.ask() for _ in range(4)] == ["b"] * 4
        replica = served.admin("GET", "groups")["groups"][0]["replicas"][0]
        assert (replica["ended"], replica["state"]) == ({"failed": 1}, "failed")
        assert 'sglk_router_requests_total{group="a",model="tiny",outcome="failed",replica="a/0"} 1.0' in (
            served.get("/metrics").text
        )
        go_on.set()


def test_only_failures_of_its_own_open_a_breaker_and_only_answers_close_it() -> None:
    sick = threading.Event()
    sick.set()
    runner = answering("a", spoils=lambda row: "out of memory" if sick.is_set() else None)
    router = {"breaker_failures": 3, "breaker_cool_down_s": 5.0, "restart_wait_s": 600.0}
    with serving({"a": runner, "b": answering("b")}, weights={"a": 1, "b": 0}, router=router) as served:
        breaker, clock = served.deployment.fleet.router.groups["a"].replicas[0].breaker, Clock()
        breaker._clock = clock

        def good() -> int:
            return served.post("/v1/completions", {"prompt": "x", "temperature": 0}).status_code

        def bad() -> int:
            return served.post("/v1/completions", {"prompt": "x" * 500}).status_code

        assert [good(), good(), bad(), bad()] == [500, 500, 400, 400]
        assert breaker.state == "closed"
        assert good() == 500
        assert breaker.state == "open"
        assert served.get("/health").json()["groups"]["a"] == "circuit breaker open: the step failed: out of memory"
        clock.now_s += 5
        assert bad() == 400
        assert breaker.state == "half_open"
        assert (
            'sglk_breaker_state{group="a",model="tiny",replica="a/0",state="half_open"} 1.0'
            in served.get("/metrics").text
        )
        told = served.admin("GET", "groups")["groups"][0]["replicas"][0]
        assert (told["breaker"], told["last_error"]) == ("half_open", "the step failed: out of memory")
        sick.clear()
        assert good() == 200
        assert breaker.state == "closed"


def test_bad_requests_take_no_group_out(pair: Served) -> None:
    for _ in range(10):
        error_of(pair.post("/v1/completions", {"prompt": "x" * 500}), 400)
    assert sorted(pair.ask() for _ in range(10)) == ["a"] * 8 + ["b"] * 2


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
        wait_until(lambda: served.deployment.counters.counts()["refused"] == 10)
