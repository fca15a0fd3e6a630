"""What is being served: the one object that the routes share."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request

from sglk.config.schema import ServeConfig
from sglk.errors import RequestError
from sglk.server.bridge import EngineBridge
from sglk.server.counting import RequestCounters
from sglk.server.latency import LABELS, LatencyMetrics
from sglk.server.metrics import EngineCollector
from sglk.server.spelling import Spelling

if TYPE_CHECKING:
    from sglk.engine.engine import Engine
    from sglk.models.chat import ChatTemplate
    from sglk.models.tokenizer import Tokenizer

SIMULATED_TEXT = "1 = the device is simulated: times come from its peak figures, and answers mean nothing."


@dataclass
class Deployment:
    """One model behind one HTTP entry.

    Routes reach the engine through `bridge` alone to generate; a router over several engines can stand in its place.
    """

    config: ServeConfig
    engine: "Engine"
    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate"
    profile_path: Path | None = None
    """File of the tuned profile in use."""
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    """Set once the server is shutting down; readiness then fails."""

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counters = RequestCounters(self.registry, self.model_name, self.group)
        self.latency = LatencyMetrics(self.registry, self.model_name, self.group)
        self.registry.register(EngineCollector(self.engine, self.model_name, self.group))
        simulated = Gauge("sglk_simulated", SIMULATED_TEXT, LABELS, registry=self.registry)
        simulated.labels(self.model_name, self.group).set(is_simulated(self.engine.device_info))
        self.bridge = EngineBridge(self.engine, self.open_limit, self.latency)
        self.spelling = Spelling(self.tokenizer)
        self.changing = asyncio.Lock()
        """Held while runtime parameters change."""

    @property
    def open_limit(self) -> int:
        """Most requests that may be open: those that can run at once, and those that may wait."""
        return self.engine.runtime.max_running_requests + self.config.server.max_queued_requests

    @property
    def can_chat(self) -> bool:
        """Whether there is a chat template."""
        return bool(self.config.server.chat_template or self.tokenizer.chat_template)

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.engine.context_length

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to one less."""
        return self.engine.vocab_size

    @property
    def group(self) -> str:
        """Name of the device group that the engine runs on."""
        name: str = self.config.groups[0].name
        return name

    @property
    def model_name(self) -> str:
        """Name of the model in the API."""
        return self.config.server.served_model_name or self.config.model.name

    def check_model(self, name: str | None) -> None:
        """Raise RequestError (404) unless `name` is the served model; null stands for it."""
        if name is not None and name != self.model_name:
            message = f"unknown model {name!r}; this server has {self.model_name!r}"
            raise RequestError(message, param="model", code="model_not_found", status=404)


def is_simulated(device_info: Mapping[str, str]) -> bool:
    """Return whether an engine's device is a simulated one."""
    return device_info.get("simulated") == "true"


def deployment_of(request: Request) -> Deployment:
    """Return the deployment that the app of `request` serves."""
    deployment = request.app.state.deployment
    assert isinstance(deployment, Deployment)
    return deployment
