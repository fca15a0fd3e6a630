"""Device groups and their replicas, as the router sees them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from sglk.cluster.breaker import Breaker
from sglk.cluster.picks import RecentPicks
from sglk.cluster.prefixes import SeenPrefixes
from sglk.cluster.recent import Recent
from sglk.engine.messages import EngineStats, GenerateRequest, Output

GroupState = Literal["serving", "draining", "drained"]

ReplicaState = Literal["serving", "failed", "restarting"]

SILENT_S = 20.0
"""A replica from which nothing has come for so long is passed over while another is well: it may have hung."""

PART_OF_STEP = 1 / 6
"""The same as a part of the longest step that a deployment allows: long steps are no silence where they are usual."""

Outcome = Literal["completed", "failed", "aborted", "refused"]
"""How a request ended at a replica: `refused` = for what it asks (4xx), `aborted` = by the client or an operator."""


class ReplicaEngine(Protocol):
    """What a replica needs of an engine; `sglk.engine.engine.Engine` has it."""

    @property
    def is_alive(self) -> bool:
        """Whether the engine takes and serves requests."""

    @property
    def failure(self) -> str | None:
        """Why the engine died."""

    @property
    def stuck_s(self) -> float:
        """For how many seconds what it is doing has brought nothing; 0 while it waits for requests, or answers them."""

    def submit(self, request: GenerateRequest, on_output: Callable[[Output], None]) -> None:
        """Queue `request`; RequestError when it is refused."""

    def abort(self, request_id: str) -> None:
        """End a request early; unknown ids are ignored."""

    def stats(self) -> EngineStats:
        """Return gauges and counters."""

    def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        """Stop the engine."""


@runtime_checkable
class PrefixCached(Protocol):
    """An engine whose prefix cache can be emptied."""

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False while requests are live."""


@dataclass(slots=True)
class ReplicaCounters:
    """What the router has seen of one replica; only grows."""

    picks: int = 0
    """Requests sent to it, second attempts included."""
    ended: Counter[Outcome] = field(default_factory=Counter)
    """How they ended there."""
    moved: int = 0
    """Part of those it failed that another group took over."""
    restarts: int = 0


class Replica:
    """One engine on one device, or on one set of tensor-parallel devices."""

    def __init__(self, name: str, engine: ReplicaEngine, breaker: Breaker, silent_s: float = SILENT_S) -> None:
        self.name = name
        """Group and position, such as `gpu/0`."""
        self.engine = engine
        self.breaker = breaker
        self.silent_s = silent_s
        self.state: ReplicaState = "serving"
        self.open_requests = 0
        self.last_pick = 0
        """Number of the router's pick that last fell on it."""
        self.seen = SeenPrefixes()
        self.counters = ReplicaCounters()

    @property
    def alive(self) -> bool:
        """Whether it can take a request at all; its breaker may advise against it."""
        return self.state == "serving" and self.engine.is_alive

    @property
    def well(self) -> bool:
        """Whether nothing has failed at it; it may be silent, as in a long step."""
        return self.alive and self.breaker.admits

    @property
    def ready(self) -> bool:
        """Whether a request should be sent to it now."""
        return self.well and self.engine.stuck_s <= self.silent_s


class DeviceGroup:
    """Replicas that share one share of the traffic."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        *,
        standby: bool = False,
        recent: Recent | None = None,
        picks: RecentPicks | None = None,
    ) -> None:
        assert replicas
        self.name = name
        self.replicas = list(replicas)
        self.standby = standby
        """Takes traffic only when no other group can."""
        self.state: GroupState = "serving"
        self.recent = recent or Recent()
        """Its latest requests."""
        self.picks = picks or RecentPicks()
        """How many requests it was sent lately."""

    @property
    def open_requests(self) -> int:
        """Requests that its replicas have and have not ended."""
        return sum(replica.open_requests for replica in self.replicas)

    @property
    def alive(self) -> bool:
        """Whether it can take a request at all."""
        return self.state == "serving" and any(replica.alive for replica in self.replicas)

    @property
    def well(self) -> bool:
        """Whether it can take traffic, though it may be in a long step."""
        return self.state == "serving" and any(replica.well for replica in self.replicas)

    @property
    def ready(self) -> bool:
        """Whether a request should be sent to it now."""
        return self.state == "serving" and any(replica.ready for replica in self.replicas)

    @property
    def trouble(self) -> str | None:
        """Why no request should be sent to it now; None while one should."""
        if self.state != "serving":
            return self.state
        if self.ready:
            return None
        return "; ".join(dict.fromkeys(_trouble(replica) for replica in self.replicas))

    @property
    def failure(self) -> str | None:
        """Why it can take no traffic; None while it can, also in a long step."""
        return None if self.well else self.trouble


def _trouble(replica: Replica) -> str:
    if replica.state != "serving":
        return f"{replica.state}: {replica.breaker.last_error}" if replica.breaker.last_error else replica.state
    if not replica.engine.is_alive:
        return f"engine stopped: {replica.engine.failure or 'shut down'}"
    if replica.breaker.admits:
        return f"nothing has come from it for {replica.engine.stuck_s:.3g} s"
    return f"circuit breaker {replica.breaker.state}: {replica.breaker.last_error}"
