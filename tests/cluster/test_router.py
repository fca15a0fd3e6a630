"""Requests go where the weights say, move on when a group fails them before a word, and always come to an end."""

import threading
from collections import Counter

import pytest

from sglk.cluster.breaker import BreakerSettings
from sglk.cluster.flight import LOST
from sglk.cluster.router import Router
from sglk.cluster.sticky import home_of
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.errors import RequestError
from sglk.testing.scripted import ScriptedRunner
from tests.cluster.fleet import Clock, ask, ended, fleet, picks
from tests.engine.receiving import ENDLESS, WAIT_S

TWO_TOKENS = SamplingParams(max_new_tokens=2, temperature=0.0, ignore_eos=True)
ONE_FAILURE = BreakerSettings(failures=1, cool_down_s=5)


def broken(row: BatchRow) -> str:
    return "the device is on fire"


def breaking_after(tokens: int) -> ScriptedRunner:
    return ScriptedRunner(spoils=lambda row: "the device is on fire" if row.num_generated >= tokens else None)


def test_requests_follow_the_weights_exactly() -> None:
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 80, "b": 20}) as router:
        for receiver in [ask(router, f"r{index}") for index in range(100)]:
            assert receiver.wait().reason == "length"
        assert picks(router) == {"a": 80, "b": 20}
        router.set_weights({"a": 0, "b": 100}, "admin")
        for receiver in [ask(router, f"s{index}") for index in range(20)]:
            receiver.wait()
        assert picks(router) == {"a": 80, "b": 40}
        assert router.open_requests == 0


def test_shares_taken_are_those_of_the_last_minute_not_of_the_weights() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 80, "b": 20}, clock=clock) as router:
        assert router.shares_taken == {"a": None, "b": None}
        session = next(name for name in "wxyz" if home_of(name, {"a": 80, "b": 20}, "ab") == "b")
        for index in range(6):
            clock.now_s += 0.4
            ask(router, f"r{index}", session=session).wait()
        ask(router, "s").wait()
        assert router.shares_taken == {"a": 1 / 7, "b": 6 / 7}
        clock.now_s += 59.5
        assert router.shares_taken == {"a": 1 / 3, "b": 2 / 3}
        clock.now_s += 2
        assert router.shares_taken == {"a": None, "b": None}


def test_a_session_stays_and_moves_only_when_its_group_goes() -> None:
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 80, "b": 20}) as router:
        homes: dict[str, set[str]] = {}
        for turn in range(3):
            for number in range(40):
                before = picks(router)
                ask(router, f"{turn}-{number}", session=f"user {number}").wait()
                after = picks(router)
                homes.setdefault(f"user {number}", set()).update(name for name in after if after[name] > before[name])
        assert all(len(names) == 1 for names in homes.values())
        assert {name for names in homes.values() for name in names} == {"a", "b"}
        router.drain("b")
        ask(router, "again", session=next(user for user, names in homes.items() if names == {"b"})).wait()
        assert sum(picks(router).values()) == 121


def test_a_request_that_fails_before_its_first_token_is_answered_by_another_group() -> None:
    with fleet({"a": ScriptedRunner(spoils=broken), "b": ScriptedRunner()}) as router:
        receivers = [ask(router, f"r{index}") for index in range(2)]
        assert [receiver.wait().reason for receiver in receivers] == ["length", "length"]
        assert all(len(receiver.token_ids) == 8 for receiver in receivers)
        assert ended(router, "a") == {"failed": 1}
        assert router.groups["a"].replicas[0].counters.moved == 1
        assert ended(router, "b") == {"completed": 2}


def test_a_request_that_fails_after_its_first_token_ends_with_the_error() -> None:
    with fleet({"a": breaking_after(5), "b": ScriptedRunner()}, {"a": 1, "b": 0}) as router:
        receiver = ask(router, "r")
        finish = receiver.wait()
        assert (finish.reason, len(receiver.token_ids)) == ("error", 5)
        assert finish.message is not None
        assert "on fire" in finish.message
        assert picks(router) == {"a": 1, "b": 0}


def test_in_a_group_of_its_own_a_request_moves_to_another_replica() -> None:
    with fleet({"a": [ScriptedRunner(spoils=broken), ScriptedRunner()]}, policy="round_robin") as router:
        assert ask(router, "r").wait().reason == "length"
        failing, well = router.groups["a"].replicas
        assert (failing.counters.moved, well.counters.ended) == (1, {"completed": 1})


def test_with_traffic_for_dead_groups_alone_no_request_is_taken() -> None:
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 1, "b": 0}) as router:
        assert router.takes_requests
        router.groups["a"].replicas[0].engine.shutdown()
        assert router.groups["b"].ready
        assert not router.takes_requests


def test_four_hundred_sessions_keep_to_their_group_and_few_move_with_the_weights() -> None:
    sessions = [f"session {number}" for number in range(400)]
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 80, "b": 20}) as router:

        def home(turn: str, session: str) -> str:
            before = picks(router)
            ask(router, f"{turn} {session}", "x", TWO_TOKENS, session).wait()
            return next(name for name, count in picks(router).items() if count > before[name])

        first = {session: home("first", session) for session in sessions}
        assert {session: home("again", session) for session in sessions} == first
        assert 52 <= sum(name == "b" for name in first.values()) <= 108
        router.set_weights({"a": 70, "b": 30}, "admin")
        second = {session: home("second", session) for session in sessions}
        moved = [session for session in sessions if first[session] != second[session]]
        assert 20 <= len(moved) <= 64
        assert {second[session] for session in moved} == {"b"}
        router.drain("b")
        assert {home("third", session) for session in sessions} == {"a"}
        router.undrain("b")
        before = picks(router)
        for index in range(200):
            ask(router, f"keyless {index}", "x", TWO_TOKENS).wait()
        assert {name: count - before[name] for name, count in picks(router).items()} == {"a": 140, "b": 60}


def test_a_request_moves_once_not_from_group_to_group() -> None:
    runners = {name: ScriptedRunner(spoils=broken) for name in "abc"}
    with fleet(runners) as router:
        assert ask(router, "r").wait().reason == "error"
        assert sum(picks(router).values()) == 2


def test_failures_take_a_replica_out_until_a_probe_succeeds() -> None:
    clock, sick = Clock(), threading.Event()
    sick.set()
    runner = ScriptedRunner(spoils=lambda row: "sick" if sick.is_set() else None)
    with fleet({"a": runner, "b": ScriptedRunner()}, breaker=ONE_FAILURE, clock=clock) as router:
        for index in range(10):
            assert ask(router, f"r{index}").wait().reason == "length"
        assert picks(router) == {"a": 1, "b": 10}
        sick.clear()
        clock.now_s += 5
        for index in range(10):
            assert ask(router, f"s{index}").wait().reason == "length"
        assert picks(router) == {"a": 6, "b": 15}


def test_an_open_breaker_does_not_shut_the_only_group() -> None:
    sick = threading.Event()
    sick.set()
    runner = ScriptedRunner(spoils=lambda row: "sick" if sick.is_set() else None)
    with fleet({"a": runner}, breaker=ONE_FAILURE) as router:
        replica = router.groups["a"].replicas[0]
        for index in range(3):
            assert ask(router, f"r{index}").wait().reason == "error"
        assert replica.breaker.state == "open"
        sick.clear()
        assert ask(router, "well").wait().reason == "length"
        assert replica.breaker.state == "closed"


def test_bad_requests_and_clients_that_leave_are_no_failures_of_the_group() -> None:
    with fleet({"a": ScriptedRunner()}, breaker=ONE_FAILURE) as router:
        for index in range(10):
            with pytest.raises(RequestError, match="context length"):
                ask(router, f"long{index}", "x" * 400)
        gone = [ask(router, f"gone{index}", sampling=ENDLESS) for index in range(10)]
        for index in range(10):
            router.abort(f"gone{index}")
        assert {receiver.wait().reason for receiver in gone} <= {"abort", "length"}
        assert ask(router, "good").wait().reason == "length"
        assert router.groups["a"].replicas[0].breaker.state == "closed"
        assert router.open_requests == router.groups["a"].open_requests == 0


def test_a_dead_engine_is_passed_over_and_with_none_left_the_answer_is_503() -> None:
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 100, "b": 1}) as router:
        router.groups["a"].replicas[0].engine.shutdown()
        for index in range(12):
            assert ask(router, f"r{index}").wait().reason == "length"
        assert picks(router) == {"a": 0, "b": 12}
        router.drain("b", force=True)
        with pytest.raises(
            RequestError, match=r"no device group takes requests now.*engine stopped.*b drain"
        ) as refusal:
            ask(router, "late")
        assert refusal.value.status == 503
        assert router.open_requests == 0


def test_standby_takes_traffic_only_when_nobody_else_can() -> None:
    runners = {"a": ScriptedRunner(), "spare": ScriptedRunner()}
    with fleet(runners, {"a": 1, "spare": 100}, standby=("spare",)) as router:
        for index in range(5):
            ask(router, f"r{index}").wait()
        assert picks(router) == {"a": 5, "spare": 0}
        router.drain("a")
        assert ask(router, "s").wait().reason == "length"
        assert picks(router) == {"a": 5, "spare": 1}
        router.undrain("a")
        ask(router, "t").wait()
        assert picks(router) == {"a": 6, "spare": 1}


def test_draining_lets_running_requests_finish_and_no_new_one_in() -> None:
    gate = threading.Event()
    with fleet({"a": ScriptedRunner(gate=gate), "b": ScriptedRunner()}, {"a": 1, "b": 0}) as router:
        running = [ask(router, f"r{index}") for index in range(4)]
        for alone in ("of weight 0", "drained"):
            with pytest.raises(RequestError, match="no other group") as refusal:
                router.drain("a")
            assert refusal.value.status == 409, alone
            router.drain("b")
        router.undrain("b")
        router.set_weights({"b": 1}, "admin")
        assert router.drain("a").state == router.drain("a").state == "draining"
        for index in range(10):
            ask(router, f"s{index}").wait()
        assert picks(router) == {"a": 4, "b": 10}
        gate.set()
        assert [receiver.wait().reason for receiver in running] == ["length"] * 4
        assert router.groups["a"].open_requests == 0
        assert router.groups["a"].state == "drained"


def test_what_has_begun_when_the_time_is_over_gets_an_error_and_the_rest_another_group() -> None:
    gate = threading.Event()

    def hold(step: int, batch: Batch) -> None:
        if any(row.num_generated for row in batch.rows):
            gate.wait(WAIT_S)

    with fleet({"a": ScriptedRunner(before_step=hold), "b": ScriptedRunner()}, {"a": 1, "b": 0}) as router:
        begun = ask(router, "begun")
        begun.wait_for(lambda: bool(begun.token_ids))
        waiting = [ask(router, f"w{index}") for index in range(3)]
        router.set_weights({"b": 1}, "admin")
        router.drain("a")
        assert router.expire("a", "the group was drained") == 4
        assert (begun.wait().message, begun.wait().code) == ("the group was drained; send the request again", LOST)
        assert [receiver.wait().reason for receiver in waiting] == ["length"] * 3
        assert router.groups["a"].state == "drained"
        gate.set()
        assert (ended(router, "a"), ended(router, "b")) == ({"aborted": 4}, {"completed": 3})
        assert router.groups["a"].replicas[0].counters.moved == 3


def test_requests_of_a_replica_that_hangs_are_answered_by_others() -> None:
    gate = threading.Event()
    with fleet({"a": ScriptedRunner(gate=gate), "b": ScriptedRunner()}, {"a": 1, "b": 0}) as router:
        receivers = [ask(router, f"r{index}") for index in range(5)]
        router.set_weights({"b": 1}, "admin")
        router.give_up(router.groups["a"].replicas[0], "no step for 60 s")
        assert [receiver.wait().reason for receiver in receivers] == ["length"] * 5
        assert ended(router, "b") == {"completed": 5}
        gate.set()
        # Whatever the replica still says is not passed on: a receiver fails on a message after the last.
    assert router.open_requests == 0


def test_least_loaded_prefers_the_idle_replica_and_round_robin_takes_turns() -> None:
    gate = threading.Event()
    for policy, expected in (("least_loaded", [1, 3]), ("round_robin", [2, 2])):
        gate.clear()
        with fleet({"a": [ScriptedRunner(gate=gate), ScriptedRunner()]}, policy=policy) as router:
            stuck = ask(router, "stuck")
            for index in range(3):
                ask(router, f"r{index}") if policy == "round_robin" else ask(router, f"r{index}").wait()
            assert [each.counters.picks for each in router.groups["a"].replicas] == expected
            gate.set()
            stuck.wait()


def test_prefix_aware_sends_a_prompt_where_its_prefix_is_unless_that_replica_is_overloaded() -> None:
    gate = threading.Event()
    runners = [ScriptedRunner(gate=gate, kv_tokens=65536) for _ in range(2)]
    with fleet({"a": runners}, policy="prefix_aware") as router:
        ask(router, "q", "quite another one " * 8)
        for index in range(4):
            ask(router, f"p{index}", "the first prefix " * 8 + str(index))
        # By load alone it would be two and three.
        assert [each.open_requests for each in router.groups["a"].replicas] == [1, 4]
        for index in range(20):
            ask(router, f"hot{index}", "the first prefix " * 8 + f"hot {index}")
        more, less = sorted((each.open_requests for each in router.groups["a"].replicas), reverse=True)
        assert more + less == 25
        assert more - less <= 5
        gate.set()


def test_ids_in_use_are_refused() -> None:
    gate = threading.Event()
    with fleet({"a": ScriptedRunner(gate=gate)}) as router:
        first = ask(router, "same")
        with pytest.raises(RequestError, match="in use"):
            ask(router, "same")
        gate.set()
        assert first.wait().reason == "length"


def test_many_threads_with_failing_groups_and_changing_weights_lose_nothing() -> None:
    random = Counter[int]()

    def sometimes(row: BatchRow) -> str | None:
        random[row.num_generated] += 1
        return "hiccup" if random[row.num_generated] % 7 == 0 else None

    breaker = BreakerSettings(failures=3, cool_down_s=0.0, longest_s=0.0)
    with fleet({"a": ScriptedRunner(spoils=sometimes), "b": ScriptedRunner()}, breaker=breaker) as router:
        ends: list[str] = []

        def client(number: int) -> None:
            ends.extend([ask(router, f"{number}-{index}", f"{number} {index}").wait().reason for index in range(20)])

        def operator() -> None:
            for index in range(200):
                router.set_weights({"a": index % 5, "b": index % 3 + 1}, "admin")

        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        threads.append(threading.Thread(target=operator))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert len(ends) == 160
        assert set(ends) <= {"length", "error"}
        assert ends.count("length") > 100
        _assert_idle(router)


def _assert_idle(router: Router) -> None:
    assert router.open_requests == 0
    for group in router.groups.values():
        assert group.open_requests == 0
        for replica in group.replicas:
            assert sum(replica.counters.ended.values()) == replica.counters.picks
