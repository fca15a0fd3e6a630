"""The entry to engines elsewhere: upstream processes that sglk launches, and servers that run already."""

import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from starlette.requests import Request

from sglk.cluster.fleet import Fleet
from sglk.cluster.group import ReplicaEngine
from sglk.config.fleet import ReplicaConfig
from sglk.config.profiles import NATIVE
from sglk.config.schema import ServeConfig
from sglk.engine.messages import GenerateRequest
from sglk.errors import ConfigError
from sglk.server.choices import new_id
from sglk.server.entry import Entry, entry_of
from sglk.server.token_ids import vocabulary_of
from sglk.upstream.fit import fitted
from sglk.upstream.launch import launch, launch_all
from sglk.upstream.messages import ProxyRequest
from sglk.upstream.probe import one_token

logger = logging.getLogger(__name__)


@dataclass
class Gateway(Entry):
    """One HTTP entry whose requests are answered elsewhere, byte for byte."""

    vocab_size: int | None = field(default=None, kw_only=True)
    """How many tokens the engines know that are launched here; None where nobody here can say."""

    def probe_request(self) -> GenerateRequest:
        """Return a request for one token of any text."""
        return ProxyRequest(
            new_id("health"),
            (),
            path="/v1/completions",
            headers=(("content-type", "application/json"),),
            body=json.dumps(one_token(self.model_name)).encode(),
        )


def gateway_of(request: Request) -> Gateway:
    """Return the gateway that the app of `request` serves."""
    gateway = entry_of(request)
    assert isinstance(gateway, Gateway)
    return gateway


def is_elsewhere(replica: ReplicaConfig) -> bool:
    """Return whether a replica's engine is not one of this process."""
    return replica.group.url is not None or replica.config.engine.name != NATIVE


def all_elsewhere(replicas: Sequence[ReplicaConfig]) -> bool:
    """Return whether there is no engine of this process among them; raises ConfigError for a mixture."""
    elsewhere = [replica.name for replica in replicas if is_elsewhere(replica)]
    here = [replica.name for replica in replicas if not is_elsewhere(replica)]
    if elsewhere and here:
        raise ConfigError(
            f"replica {here[0]} is of engine=native in this process and {elsewhere[0]} is a server elsewhere; start a"
            " second `sglk serve` for the former and name its url in its group"
        )
    return bool(elsewhere)


def _as_launched(replica: ReplicaConfig) -> ReplicaConfig:
    """Return what its engine is told, so that nothing is said of it that it was not."""
    if replica.group.url is not None:
        return replica
    config, left_out = fitted(replica.config, replica.inherited)
    for note in left_out:
        logger.info("%s: %s", replica.name, note)
    return replace(replica, config=config, inherited=frozenset())


def load_gateway(config: ServeConfig, profile_path: Path | None, replicas: Sequence[ReplicaConfig]) -> Gateway:
    """Start or find the engine of every replica, all at the same time, and see each generate; raises SglkError."""
    replicas = [_as_launched(each) for each in replicas]
    started = launch_all(replicas)
    closing = threading.Event()

    def launched(replica: ReplicaConfig) -> ReplicaEngine:
        return started.pop(replica.name, None) or launch(replica, closing)

    try:
        fleet = Fleet(replicas, config.router, launched, closing)
    except BaseException:
        for engine in started.values():
            engine.shutdown()
        raise
    try:
        vocab_size = vocabulary_of(each.config.model for each in replicas if each.group.url is None)
        return Gateway(config, fleet, profile_path=profile_path, vocab_size=vocab_size)
    except BaseException:
        fleet.shutdown()
        raise
