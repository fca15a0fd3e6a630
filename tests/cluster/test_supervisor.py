"""Replicas that die or hang are taken out, started again, and come back through a probe."""

import threading
from itertools import pairwise

import pytest

from sglk.cluster.breaker import BreakerSettings
from sglk.cluster.fleet import Fleet
from sglk.cluster.ramp import Ramp, RampPlan
from sglk.cluster.router import Router
from sglk.cluster.supervisor import Supervisor, SupervisorSettings
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.engine.batch import Batch
from sglk.engine.engine import Engine
from sglk.errors import BackendError
from sglk.testing.scripted import ScriptedRunner
from tests.cluster.fleet import Clock, ask, engine_of, fleet, picks
from tests.engine.receiving import WAIT_S

ONE_FAILURE = BreakerSettings(failures=1, cool_down_s=5)


def dying() -> ScriptedRunner:
    def die(step: int, batch: Batch) -> None:
        raise RuntimeError("device lost")

    return ScriptedRunner(before_step=die)


def kill(router: Router, name: str) -> None:
    engine = router.groups[name].replicas[0].engine
    assert isinstance(engine, Engine)
    engine.shutdown()


def test_a_dead_replica_is_started_again_and_its_first_request_is_a_probe() -> None:
    clock = Clock()
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, clock=clock) as router:
        supervisor = Supervisor(router, {"a/0": lambda: engine_of(ScriptedRunner())}, clock=clock)
        kill(router, "a")
        supervisor.tick()
        replica = router.groups["a"].replicas[0]
        assert replica.state == "failed"
        for index in range(4):
            assert ask(router, f"r{index}").wait().reason == "length"
        assert picks(router) == {"a": 0, "b": 4}
        clock.now_s += 1
        _tick_until_serving(supervisor, router)
        assert (replica.counters.restarts, replica.breaker.state) == (1, "half_open")
        for index in range(4):
            assert ask(router, f"s{index}").wait().reason == "length"
        assert replica.breaker.state == "closed"
        assert picks(router)["a"] == 2
        replica.engine.shutdown()


def test_restarts_that_fail_are_tried_again_later_and_later() -> None:
    clock, attempts = Clock(), []

    def launch() -> Engine:
        attempts.append(clock.now_s)
        if len(attempts) < 4:
            raise BackendError("the card does not answer")
        return engine_of(ScriptedRunner())

    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, clock=clock) as router:
        supervisor = Supervisor(router, {"a/0": launch}, SupervisorSettings(first_wait_s=1, longest_wait_s=4), clock)
        kill(router, "a")
        replica = router.groups["a"].replicas[0]
        while replica.state != "serving" or not replica.engine.is_alive:
            supervisor.tick()
            _settled(supervisor)
            clock.now_s += 0.5
        assert [later - before for before, later in pairwise(attempts)] == [2, 4, 4]
        assert replica.breaker.last_error == "the card does not answer"
        replica.engine.shutdown()


def test_a_step_that_never_ends_takes_the_replica_out() -> None:
    gate = threading.Event()
    with fleet({"a": ScriptedRunner(gate=gate), "b": ScriptedRunner()}, {"a": 1, "b": 0}) as router:
        launches = {f"{name}/0": lambda: engine_of(ScriptedRunner()) for name in "ab"}
        supervisor = Supervisor(router, launches, SupervisorSettings(step_timeout_s=0.0))
        stuck = ask(router, "r")
        router.set_weights({"b": 1}, "admin")
        replica = router.groups["a"].replicas[0]
        while replica.state == "serving":
            supervisor.tick()
        assert stuck.wait().reason == "length"
        assert picks(router) == {"a": 1, "b": 1}
        assert "nothing has come from it for" in (router.groups["a"].trouble or "")
        gate.set()


def test_a_replica_that_says_nothing_is_passed_over_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 9, "b": 1}) as router:
        group, silent_s = router.groups["a"], {router.groups["a"].replicas[0].engine: 20.1}
        monkeypatch.setattr(Engine, "stuck_s", property(lambda engine: silent_s.get(engine, 0.0)))
        assert (group.ready, group.alive, group.trouble) == (False, True, "nothing has come from it for 20.1 s")
        for index in range(4):
            assert ask(router, f"r{index}").wait().reason == "length"
        assert picks(router) == {"a": 0, "b": 4}
        router.drain("b", force=True)
        assert ask(router, "nobody else is left").wait().reason == "length"
        assert picks(router) == {"a": 1, "b": 4}
        silent_s.clear()
        assert (group.ready, group.trouble) == (True, None)


def test_a_group_in_a_long_step_keeps_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 9, "b": 1}) as router:
        silent_s = {router.groups["b"].replicas[0].engine: 20.1}
        monkeypatch.setattr(Engine, "stuck_s", property(lambda engine: silent_s.get(engine, 0.0)))
        ramp = Ramp(router, RampPlan("b", 50, 20, 1.0))
        ramp.tick()
        assert ramp.state == "moving"
        assert router.drain("a").state == "drained"


def test_a_replica_is_silent_after_a_part_of_the_longest_step() -> None:
    composed = compose("serve", ["model=smollm2", "router.step_timeout_s=600"])
    fleet = Fleet(replica_configs(composed), composed.config.router, lambda _: engine_of(ScriptedRunner()))
    assert [each.silent_s for each in fleet.router.replicas] == pytest.approx([100])
    fleet.shutdown()


def test_a_restart_on_request_gives_up_what_runs_and_forgets_the_prefixes() -> None:
    gate = threading.Event()
    with fleet({"a": ScriptedRunner(gate=gate), "b": ScriptedRunner()}, {"a": 1, "b": 0}) as router:
        supervisor = Supervisor(router, {"a/0": lambda: engine_of(ScriptedRunner())})
        moved = ask(router, "r")
        router.set_weights({"b": 1}, "admin")
        supervisor.restart("a")
        assert moved.wait().reason == "length"
        gate.set()
        _tick_until_serving(supervisor, router)
        assert router.groups["a"].trouble is None
        router.groups["a"].replicas[0].engine.shutdown()


def test_a_replica_that_lives_but_fails_is_left_to_its_breaker_and_at_last_started_again() -> None:
    clock = Clock()
    with fleet({"a": dying(), "b": ScriptedRunner()}, breaker=ONE_FAILURE, clock=clock) as router:
        supervisor = Supervisor(router, {"a/0": lambda: engine_of(ScriptedRunner())}, clock=clock)
        replica = router.groups["a"].replicas[0]
        for index in range(4):
            assert ask(router, f"r{index}").wait().reason == "length"
        assert router.groups["a"].trouble == "circuit breaker open: the step failed: RuntimeError: device lost"
        clock.now_s += 100
        supervisor.tick()
        # One failure may have been its request's own fault, whenever it was.
        assert replica.state == "serving"
        for index in range(2):
            ask(router, f"s{index}").wait()
            ask(router, f"t{index}").wait()
            clock.now_s += 100
        supervisor.tick()
        assert replica.state == "failed"
        assert replica.breaker.last_error == (
            "nothing but failures for 300 s, the last: the step failed: RuntimeError: device lost"
        )
        clock.now_s += 1
        _tick_until_serving(supervisor, router)
        assert [ask(router, f"u{index}").wait().reason for index in range(4)] == ["length"] * 4
        assert replica.breaker.state == "closed"
        replica.engine.shutdown()


def test_a_replica_that_fails_some_and_answers_others_is_not_started_again() -> None:
    clock = Clock()
    fussy = ScriptedRunner(spoils=lambda row: "not this one" if len(row.input_ids) > 8 else None)
    with fleet({"a": fussy}, breaker=ONE_FAILURE, clock=clock) as router:
        supervisor = Supervisor(router, {"a/0": lambda: engine_of(ScriptedRunner())}, clock=clock)
        for index in range(6):
            assert ask(router, f"bad{index}", "much too long for it").wait().reason == "error"
            assert ask(router, f"good{index}", "x").wait().reason == "length"
            clock.now_s += 100
            supervisor.tick()
        assert router.groups["a"].replicas[0].state == "serving"


def test_a_replica_with_an_answer_under_way_is_not_started_again() -> None:
    clock, gate = Clock(), threading.Event()
    with fleet({"a": ScriptedRunner(gate=gate)}, breaker=ONE_FAILURE, clock=clock) as router:
        supervisor = Supervisor(router, {"a/0": lambda: engine_of(ScriptedRunner())}, clock=clock)
        replica = router.groups["a"].replicas[0]
        running = ask(router, "running")
        for _ in range(3):
            replica.breaker.fail("sick", probe=replica.breaker.enter())
            clock.now_s += 100
        supervisor.tick()
        assert replica.state == "serving"
        gate.set()
        assert running.wait().reason == "length"


def test_a_replica_that_starts_and_dies_again_is_started_later_and_later() -> None:
    clock, starts = Clock(), []

    def launch() -> Engine:
        starts.append(clock.now_s)
        return engine_of(ScriptedRunner())

    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, clock=clock) as router:
        settings = SupervisorSettings(first_wait_s=1, longest_wait_s=4)
        supervisor = Supervisor(router, {"a/0": launch}, settings, clock)
        replica = router.groups["a"].replicas[0]

        def die_and_come_back() -> None:
            kill(router, "a")
            supervisor.tick()
            while replica.state != "serving":
                clock.now_s += 0.5
                supervisor.tick()
                _settled(supervisor)

        for _ in range(4):
            die_and_come_back()
        assert [later - before for before, later in pairwise(starts)] == [2, 4, 4]
        # A probe that goes well, and some time without trouble, make up for it.
        for index in range(2):
            ask(router, f"r{index}").wait()
        clock.now_s += 4
        supervisor.tick()
        well_s = clock.now_s
        die_and_come_back()
        assert starts[-1] - well_s == 1
        replica.engine.shutdown()


def test_a_replica_that_is_ready_after_the_end_does_not_come_back() -> None:
    launched: list[Engine] = []
    go = threading.Event()

    def launch() -> Engine:
        go.wait(WAIT_S)
        launched.append(engine_of(ScriptedRunner()))
        return launched[0]

    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}) as router:
        supervisor = Supervisor(router, {"a/0": launch})
        supervisor.restart("a")
        supervisor.tick()
        supervisor.stop()
        assert supervisor.starting == ["a/0"]
        go.set()
        supervisor.join(WAIT_S)
        assert not supervisor.starting
        assert router.groups["a"].replicas[0].engine is not launched[0]
        assert not launched[0].is_alive


def _tick_until_serving(supervisor: Supervisor, router: Router) -> None:
    supervisor.tick()
    _settled(supervisor)
    assert router.groups["a"].replicas[0].state == "serving"


def _settled(supervisor: Supervisor) -> None:
    """Wait for the restarts that have begun."""
    for thread in threading.enumerate():
        if thread.name.startswith("sglk-restart-"):
            thread.join(WAIT_S)
