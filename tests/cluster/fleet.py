"""Routers over real engines on scripted runners."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sglk.cluster.breaker import Breaker, BreakerSettings
from sglk.cluster.group import DeviceGroup, Replica
from sglk.cluster.picks import RecentPicks
from sglk.cluster.recent import Recent
from sglk.cluster.router import Router
from sglk.config.schema import RuntimeConfig
from sglk.engine.engine import Engine
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import GREEDY, TOKENIZER, Receiver


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def engine_of(runner: ScriptedRunner) -> Engine:
    engine = Engine(runner, TOKENIZER, RuntimeConfig())
    engine.start()
    return engine


@contextmanager
def fleet(
    runners: Mapping[str, ScriptedRunner | list[ScriptedRunner]],
    shares: Mapping[str, float] | None = None,
    *,
    standby: tuple[str, ...] = (),
    breaker: BreakerSettings | None = None,
    clock: Callable[[], float] | None = None,
    **settings: Any,
) -> Iterator[Router]:
    """Run one replica per runner; the groups have equal weights unless `shares` says otherwise."""
    clock = clock or Clock()
    groups = []
    for name, given in runners.items():
        several = given if isinstance(given, list) else [given]
        replicas = [
            Replica(f"{name}/{index}", engine_of(runner), Breaker(breaker or BreakerSettings(), clock))
            for index, runner in enumerate(several)
        ]
        groups.append(
            DeviceGroup(name, replicas, standby=name in standby, recent=Recent(clock), picks=RecentPicks(clock))
        )
    router = Router(groups, shares or dict.fromkeys(runners, 1.0), clock=clock, **settings)
    try:
        yield router
    finally:
        for group in groups:
            for replica in group.replicas:
                engine = replica.engine
                assert isinstance(engine, Engine)
                engine.shutdown()


def ask(
    router: Router,
    name: str,
    prompt: str = "hello",
    sampling: SamplingParams = GREEDY,
    session: str | None = None,
) -> Receiver:
    receiver = Receiver()
    router.submit(GenerateRequest(name, tuple(TOKENIZER.encode(prompt)), sampling, session), receiver)
    return receiver


def picks(router: Router) -> dict[str, int]:
    """How many requests each group was sent."""
    return {name: sum(each.counters.picks for each in group.replicas) for name, group in router.groups.items()}


def ended(router: Router, group: str) -> dict[str, int]:
    """How requests ended at the first replica of a group."""
    return dict(router.groups[group].replicas[0].counters.ended)
