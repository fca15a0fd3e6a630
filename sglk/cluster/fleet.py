"""All replicas of a deployment at work: the router over them, and the thread that cares for them."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial

from sglk.cluster.breaker import Breaker, BreakerSettings
from sglk.cluster.group import PART_OF_STEP, DeviceGroup, PrefixCached, Replica, ReplicaEngine
from sglk.cluster.ramp import Ramp, RampPlan
from sglk.cluster.router import Router
from sglk.cluster.supervisor import Supervisor, SupervisorSettings
from sglk.cluster.weights_file import WeightsFile
from sglk.config.fleet import ReplicaConfig
from sglk.config.home import expanded
from sglk.config.schema import RouterConfig, RuntimeConfig
from sglk.engine.engine import Engine
from sglk.engine.messages import EngineStats, Grammar
from sglk.errors import RequestError

logger = logging.getLogger(__name__)

TICK_S = 0.5
"""How often replicas, weights file and ramp are looked at."""

JOIN_S = 10.0
"""How long the end waits for what looks after the replicas."""

STARTING_S = 1.0
"""The same for a replica that is being started: one that loads weights may take minutes, and is then left behind."""

LaunchReplica = Callable[[ReplicaConfig], ReplicaEngine]
"""Loads, starts and tries the engine of a replica; raises SglkError."""


class Fleet:
    """The running replicas of one deployment. `start` begins to care for them; `shutdown` ends all."""

    def __init__(
        self,
        configs: Sequence[ReplicaConfig],
        settings: RouterConfig,
        launch: LaunchReplica,
        closing: threading.Event | None = None,
    ) -> None:
        """Launch every replica; raises SglkError when one cannot start.

        `closing` is set when all ends: a `launch` that takes minutes may look at it.
        """
        self._launch = launch
        self.configs = {config.name: config for config in configs}
        """What each replica serves, and would start again with."""
        with ExitStack() as undo:
            engines: dict[str, ReplicaEngine] = {}
            for config in configs:
                engines[config.name] = engine = launch(config)
                undo.callback(engine.shutdown, 0.0)
            undo.pop_all()
        self.router = Router(
            _groups(configs, engines, settings),
            {config.group.name: config.group.weight for config in configs},
            policy=settings.policy,
        )
        self._ramp: Ramp | None = None
        self.weights_file = WeightsFile(expanded(settings.weights_file), self.router) if settings.weights_file else None
        self.supervisor = Supervisor(
            self.router,
            {name: partial(self._relaunch, name) for name in self.configs},
            SupervisorSettings(
                settings.step_timeout_s, first_wait_s=settings.restart_wait_s, sick_s=settings.restart_after_s
            ),
        )
        self._ramp_lock = threading.Lock()
        self._closing = closing or threading.Event()
        self._thread = threading.Thread(target=self._care, name="sglk-fleet", daemon=True)

    @property
    def engines(self) -> dict[str, Engine]:
        """The engines of this process that serve now, by the names of their replicas."""
        engines = {replica.name: replica.engine for replica in self.router.replicas}
        return {name: engine for name, engine in engines.items() if isinstance(engine, Engine)}

    @property
    def first(self) -> Engine:
        """The engine of the first replica; what all engines have in common can be asked of it."""
        return next(iter(self.engines.values()))

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together that every replica takes."""
        return min(engine.context_length for engine in self.engines.values())

    @property
    def max_running_requests(self) -> int:
        """Requests that can run at once, all replicas together; of engines elsewhere what they were started with."""
        windows = {name: config.config.runtime.max_running_requests for name, config in self.configs.items()}
        windows |= {name: engine.runtime.max_running_requests for name, engine in self.engines.items()}
        return sum(windows.values())

    def stats(self) -> EngineStats:
        """Return the gauges and counters of all replicas together."""
        return sum_stats(replica.engine.stats() for replica in self.router.replicas)

    def prepare(self, grammar: Grammar) -> None:
        """Compile `grammar` for every replica; raises RequestError for one that cannot be followed."""
        for engine in self.engines.values():
            engine.prepare(grammar)

    def flush_cache(self) -> bool:
        """Empty the prefix caches; False when a replica has live requests and keeps its own."""
        for replica in self.router.replicas:
            replica.seen.clear()
        serving = [replica.engine for replica in self.router.replicas if replica.alive]
        flushed = [engine.flush_cache() for engine in serving if isinstance(engine, PrefixCached)]
        return all(flushed)

    def reconfigure(self, runtimes: Mapping[str, RuntimeConfig], *, force: bool = False) -> None:
        """Rebuild replicas for new runtime parameters, also for their next start; raises as `Engine.reconfigure` does.

        When one refuses, those before it get their old parameters back. One that is down takes them when it is back.
        """
        engines = self._serving()
        old = {name: engine.runtime for name, engine in engines.items()}
        done: list[str] = []
        try:
            for name in engines.keys() & runtimes.keys():
                engines[name].reconfigure(runtimes[name], force=force)
                done.append(name)
        except BaseException:
            for name in done:
                engines[name].reconfigure(old[name], force=True)
            raise
        for name, runtime in runtimes.items():
            known = self.configs[name]
            self.configs[name] = replace(known, config=replace(known.config, runtime=runtime))

    def _serving(self) -> dict[str, Engine]:
        replicas = [each for each in self.router.replicas if each.alive]
        return {each.name: each.engine for each in replicas if isinstance(each.engine, Engine)}

    def start(self) -> None:
        """Begin to care for the replicas."""
        # One that was not there at the start is known to be out before the first request.
        self.supervisor.tick()
        if self.weights_file is not None:
            self.weights_file.tick()
        self._thread.start()

    @property
    def ramp(self) -> Ramp | None:
        """The ramp on its way, or the last one."""
        with self._ramp_lock:
            return self._ramp_now()

    def _ramp_now(self) -> Ramp | None:
        if self._ramp is not None:
            self._ramp.give_way()
        return self._ramp

    def start_ramp(self, plan: RampPlan) -> Ramp:
        """Begin a ramp; raises RequestError for one that cannot be followed, and (409) while another is on its way."""
        with self._ramp_lock:
            if (ramp := self._ramp_now()) is not None and ramp.state == "moving":
                message = f"a ramp of group {ramp.plan.group!r} is on its way; stop it first"
                raise RequestError(message, code="ramp_in_progress", status=409)
            self._ramp = Ramp(self.router, plan)
            return self._ramp

    def stop_ramp(self, reason: str) -> Ramp:
        """Stop the ramp, between two of its steps, and leave the weights as they are; RequestError (404) for none."""
        with self._ramp_lock:
            if (ramp := self._ramp_now()) is None:
                raise RequestError("there has been no ramp", code="no_ramp", status=404)
            ramp.stop(reason)
            return ramp

    def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        """Let live requests finish for `drain_timeout_s`, then end all replicas and what cares for them."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        self.supervisor.stop()
        ends = [threading.Thread(target=each.engine.shutdown, args=(drain_timeout_s,)) for each in self.router.replicas]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
        self.supervisor.join(STARTING_S)

    def _relaunch(self, name: str) -> ReplicaEngine:
        return self._launch(self.configs[name])

    def _care(self) -> None:
        while not self._closing.wait(TICK_S):
            self._tick()

    def _tick(self) -> None:
        try:
            self.supervisor.tick()
            if self.weights_file is not None:
                self.weights_file.tick()
            with self._ramp_lock:
                if self._ramp is not None:
                    self._ramp.tick()
        # Whoever cares for the others must not die of one of them.
        except Exception:
            logger.exception("the care for the replicas failed; it goes on")


def sum_stats(several: Iterable[EngineStats]) -> EngineStats:
    """Return gauges and counters added up."""
    total = EngineStats()
    for stats in several:
        for field in fields(EngineStats):
            setattr(total, field.name, getattr(total, field.name) + getattr(stats, field.name))
    return total


def _groups(
    configs: Sequence[ReplicaConfig], engines: Mapping[str, ReplicaEngine], settings: RouterConfig
) -> list[DeviceGroup]:
    breaker = BreakerSettings(settings.breaker_failures, settings.breaker_cool_down_s)
    silent_s = settings.step_timeout_s * PART_OF_STEP
    members: dict[str, list[ReplicaConfig]] = {}
    for config in configs:
        members.setdefault(config.group.name, []).append(config)
    return [
        DeviceGroup(
            name,
            [Replica(config.name, engines[config.name], Breaker(breaker), silent_s) for config in group],
            standby=group[0].group.standby,
        )
        for name, group in members.items()
    ]
