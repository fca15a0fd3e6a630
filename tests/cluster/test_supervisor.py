"""Replicas that die or hang are taken out, started again, and come back through a probe."""

import threading
from itertools import pairwise

from sglk.cluster.breaker import BreakerSettings
from sglk.cluster.router import Router
from sglk.cluster.supervisor import Supervisor, SupervisorSettings
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
        assert "a step has been running" in (router.groups["a"].trouble or "")
        gate.set()


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


def test_a_replica_that_only_fails_requests_is_left_to_its_breaker() -> None:
    with fleet({"a": dying(), "b": ScriptedRunner()}, breaker=ONE_FAILURE) as router:
        supervisor = Supervisor(router, {})
        for index in range(4):
            assert ask(router, f"r{index}").wait().reason == "length"
        supervisor.tick()
        assert router.groups["a"].replicas[0].state == "serving"
        assert router.groups["a"].trouble == "circuit breaker open: the step failed: RuntimeError: device lost"


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
        go.set()
        supervisor.join(WAIT_S)
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
