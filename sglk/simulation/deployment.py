"""The replicas of a deployment that is imagined: planned memory, priced steps, the real router over them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sglk.cluster.breaker import Breaker, BreakerSettings
from sglk.cluster.group import DeviceGroup, Replica
from sglk.cluster.recent import Recent
from sglk.cluster.router import Router
from sglk.config.fleet import ReplicaConfig
from sglk.config.plan_schema import RoomConfig
from sglk.config.schema import RouterConfig, RuntimeConfig
from sglk.engine.core import Core
from sglk.errors import CapacityError
from sglk.planner.calibration.find import AUTO
from sglk.planner.cost.model import CostModel, cost_model
from sglk.planner.plan import ReplicaPlan, plan_deployment
from sglk.simulation.clock import VirtualClock
from sglk.simulation.engine import VirtualEngine
from sglk.simulation.times import TokenTimes


@dataclass(frozen=True)
class PlannedDevice:
    """What a `Core` needs of a runner; nothing is allocated."""

    vocab_size: int
    context_length: int
    kv_tokens: int

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        """Return the tokens that were planned."""
        return self.kv_tokens

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Return at once."""


@dataclass(frozen=True)
class Way:
    """What lies between a client and the engines, in seconds; on its own a server on the same machine."""

    arrival_s: float = 0.002
    """From a request's sending to the engine's queue. Requests that come together pass one after another: a server
    reads them in one thread, and their client writes them in one."""
    arrival_token_s: float = 0.0
    """For each token of its prompt."""
    delivery_s: float = 0.001
    """From the end of a step to the client."""


@dataclass(frozen=True)
class VirtualReplica:
    """One engine of the deployment."""

    name: str
    group: str
    plan: ReplicaPlan
    cost: CostModel
    engine: VirtualEngine


class VirtualDeployment:
    """All replicas behind one router, on one clock."""

    def __init__(
        self, configs: Sequence[ReplicaConfig], settings: RouterConfig, clock: VirtualClock, calibration: str = AUTO
    ) -> None:
        """Plan and price every replica; raises CapacityError for one that cannot start, ConfigError for no figures.

        `calibration` is what `cost_model` takes.
        """
        self._calibration = calibration
        self.times: dict[str, TokenTimes] = {}
        """When each token of a live request came, by request id."""
        self.clock = clock
        plans = plan_deployment(configs, RoomConfig()).replicas
        self.replicas = [self._replica(config, plan) for config, plan in zip(configs, plans, strict=True)]
        self.router = Router(
            self._groups(configs, settings),
            {config.group.name: config.group.weight for config in configs},
            policy=settings.policy,
            clock=clock,
        )

    def take_times(self, request_id: str) -> TokenTimes:
        """Return when the tokens of a request came so far, and forget it."""
        for each in self.replicas:
            each.engine.note_times(request_id)
        times = self.times.pop(request_id, TokenTimes())
        # Its engine may go on for a while.
        return replace(times, gaps_s=times.gaps_s.copy())

    def dismantle(self) -> None:
        """Let go of what engines hold in circles, at the end: finding it as garbage takes several times as long."""
        for each in self.replicas:
            each.engine.core.cache.dismantle()
            each.engine.core.scheduler.decoding.foretold = None

    @property
    def way(self) -> "Way":
        """Return the way of requests and answers; where replicas differ, that of the first calibrated one."""
        known = [each.cost for each in self.replicas if each.cost.basis.kind == "calibration"]
        return Way(known[0].arrival_s, known[0].arrival_token_s, known[0].delivery_s) if known else Way()

    def _replica(self, config: ReplicaConfig, plan: ReplicaPlan) -> VirtualReplica:
        found, spec, runtime = plan.found, plan.subject.model.spec, config.config.runtime
        if not found.kv_tokens:
            raise CapacityError(f"replica {config.name}: {plan.why}; `sglk plan` says what would make it fit")
        device = PlannedDevice(spec.vocab_size, spec.max_position_embeddings, found.kv_tokens)
        cost = cost_model(config.config, self._calibration)
        core = Core.build(device, runtime, frozenset())
        engine = VirtualEngine(config.name, core, cost.step_s, self.clock, self.times, host=cost.host)
        return VirtualReplica(config.name, config.group.name, plan, cost, engine)

    def _groups(self, configs: Sequence[ReplicaConfig], settings: RouterConfig) -> list[DeviceGroup]:
        breaker = BreakerSettings(settings.breaker_failures, settings.breaker_cool_down_s)
        members: dict[str, list[Replica]] = {}
        for config, each in zip(configs, self.replicas, strict=True):
            replica = Replica(config.name, each.engine, Breaker(breaker, self.clock))
            members.setdefault(config.group.name, []).append(replica)
        standby = {config.group.name for config in configs if config.group.standby}
        return [
            DeviceGroup(name, replicas, standby=name in standby, recent=Recent(self.clock))
            for name, replicas in members.items()
        ]
