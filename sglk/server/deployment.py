"""What is being served: the one object that the routes share."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from sglk.adviser.history import History
from sglk.cluster.fleet import Fleet
from sglk.config.schema import ServeConfig
from sglk.errors import RequestError
from sglk.server.bridge import EngineBridge
from sglk.server.counting import RequestCounters
from sglk.server.fleet_metrics import FleetCollector
from sglk.server.latency import LatencyMetrics
from sglk.server.live_feed import LiveFeed
from sglk.server.op_metrics import OpCollector
from sglk.server.orders import Orders
from sglk.server.spelling import Spelling

if TYPE_CHECKING:
    from sglk.models.chat import ChatTemplate
    from sglk.models.tokenizer import Tokenizer


@dataclass
class Deployment:
    """One model behind one HTTP entry, served by the replicas of `fleet`.

    Routes reach engines through `bridge` alone to generate; it goes by way of the fleet's router.
    """

    config: ServeConfig
    fleet: Fleet
    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate"
    profile_path: Path | None = None
    """File of the tuned profile in use."""
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
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
        self.history = History()
        """What the metrics said lately."""
        self.feed = LiveFeed()
        """What the dashboard shows."""
        self.spelling = Spelling(self.tokenizer)
        self.changing = asyncio.Lock()
        """Held while runtime parameters change."""
        self.cut_off = asyncio.Event()
        """Set when the server's time to finish is over: what is not complete by then ends now."""
        self.orders = Orders()
        """Drains and restarts on their way, by device group."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open_limit(self) -> int:
        """Most requests that may be open: those that can run at once, and those that may wait."""
        return self.fleet.max_running_requests + self.config.server.max_queued_requests

    @property
    def can_chat(self) -> bool:
        """Whether there is a chat template."""
        return bool(self.config.server.chat_template or self.tokenizer.chat_template)

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.fleet.context_length

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to one less."""
        return self.fleet.first.vocab_size

    @property
    def model_name(self) -> str:
        """Name of the model in the API."""
        return self.config.server.served_model_name or self.config.model.name

    def check_model(self, name: str | None) -> None:
        """Raise RequestError (404) unless `name` is the served model; null stands for it."""
        if name is not None and name != self.model_name:
            message = f"unknown model {name[:60]!r}; this server has {self.model_name!r}"
            raise RequestError(message, param="model", code="model_not_found", status=404)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in the event loop while the route that asked for it answers."""
        task = asyncio.get_running_loop().create_task(work)
        # The loop itself keeps no hold on its tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def deployment_of(request: Request) -> Deployment:
    """Return the deployment that the app of `request` serves."""
    deployment = request.app.state.deployment
    assert isinstance(deployment, Deployment)
    return deployment
