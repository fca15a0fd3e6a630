"""What every HTTP entry has, whatever answers behind it: groups, counters, the live page, the state of the server."""

import asyncio
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from sglk.adviser.history import History
from sglk.cluster.fleet import Fleet
from sglk.config.schema import ServeConfig
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.server.bridge import EngineBridge
from sglk.server.counting import RequestCounters
from sglk.server.cut_off import CutOff
from sglk.server.fleet_metrics import FleetCollector
from sglk.server.latency import LatencyMetrics
from sglk.server.live_feed import LiveFeed
from sglk.server.op_metrics import OpCollector
from sglk.server.orders import Orders

PROBE_PROMPT = (0,)


@dataclass
class Entry:
    """One HTTP entry to the replicas of `fleet`.

    Routes reach engines through `bridge` alone to generate; it goes by way of the fleet's router.
    """

    config: ServeConfig
    fleet: Fleet
    profile_path: Path | None = field(default=None, kw_only=True)
    """File of the tuned profile in use."""
    created: int = field(default_factory=lambda: int(time.time()), kw_only=True)
    draining: bool = field(default=False, kw_only=True)
    """Set once the server is shutting down; readiness then fails."""

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counters = RequestCounters(self.registry, self.model_name)
        self.latency = LatencyMetrics(self.registry, self.model_name)
        self.registry.register(FleetCollector(self.fleet, self.model_name))
        self.registry.register(OpCollector(self.fleet, self.model_name))
        self.bridge = EngineBridge(
            self.fleet.router, self.open_limit, self.latency, self.config.server.request_timeout_s
        )
        self.session_header = self.config.router.session_header.lower().encode()
        """As requests carry it."""
        self.history = History()
        """What the metrics said lately."""
        self.feed = LiveFeed()
        """What the dashboard shows."""
        self.changing = asyncio.Lock()
        """Held while runtime parameters change."""
        self.cut_off = CutOff()
        """Comes when the server's time to finish is over."""
        self.orders = Orders()
        """Drains and restarts on their way, by device group."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open_limit(self) -> int:
        """Most requests that may be open: those that can run at once, and those that may wait."""
        return self.fleet.max_running_requests + self.config.server.max_queued_requests

    @property
    def model_name(self) -> str:
        """Name of the model in the API."""
        return self.config.server.served_model_name or self.config.model.name

    def probe_request(self) -> GenerateRequest:
        """Return a request for one token, by which an engine shows that it generates."""
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
        return GenerateRequest(f"health-{uuid.uuid4().hex}", PROBE_PROMPT, sampling)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in the event loop while the route that asked for it answers."""
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps no hold on its tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def entry_of(request: Request) -> Entry:
    """Return the entry that the app of `request` serves."""
    entry = request.app.state.deployment
    assert isinstance(entry, Entry)
    return entry
