"""One deployment from configuration to a served port."""

import gc
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from sglk.cluster.fleet import Fleet, LaunchReplica
from sglk.config.fleet import ReplicaConfig, alone
from sglk.config.schema import ServeConfig
from sglk.engine.engine import Engine
from sglk.engine.warm_up import warm_up
from sglk.last_words import ends_when_frozen
from sglk.models.chat import check_chat_template, load_chat_template
from sglk.server.announcement import announcement, ready_line, say
from sglk.server.app import create_app
from sglk.server.deployment import Deployment
from sglk.server.descriptors import make_room
from sglk.server.entry import Entry
from sglk.server.gateway import all_elsewhere, load_gateway
from sglk.server.http_server import HttpServer
from sglk.server.logs import set_up_logging
from sglk.server.port import bind, url_of
from sglk.server.tls import scheme_of, tls_files
from sglk.server.tracing import tracing_to

logger = logging.getLogger(__name__)

_YOUNG_OBJECTS = 50_000
"""Before garbage is looked for, which stops all requests for as long as there are objects to look at."""

FROZEN_S = 30.0
"""How much longer than a step may take nothing at all may run: a busy machine lets a thread wait."""


def serve(
    config: ServeConfig,
    profile_path: Path | None,
    replicas: Sequence[ReplicaConfig],
    launch: LaunchReplica | None = None,
) -> bool:
    """Serve `config` by `replicas` until a signal ends it; `profile_path` is the file of the profile in use.

    Return whether all has ended. Else a replica is still being started: no thread can be stopped while it computes.

    The port is taken first and opens last: a conflict shows before weights are loaded, and whoever can connect gets
    answers. `launch` brings engines of another kind.
    """
    set_up_logging(config.server.log_level, config.server.log_format)
    elsewhere = all_elsewhere(replicas)
    clients = config.server.max_queued_requests + sum(each.config.runtime.max_running_requests for each in replicas)
    make_room(clients, 2 if elsewhere else 1)
    # What is imported by now stays for good: no search for garbage shall stop all requests to look at it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    with (
        tracing_to(config.server.otlp_endpoint, config.server.served_model_name or config.model.name) as on_end,
        closing(bind(config.server.host, config.server.port)) as listener,
    ):
        tls_files(config.server)
        if elsewhere:
            deployment: Entry = load_gateway(config, profile_path, replicas)
        else:
            deployment = load_deployment(config, profile_path, replicas, launch)
        deployment.fleet.start()
        url = url_of(listener, scheme_of(config.server))

        def announce() -> None:
            lines = [*announcement(deployment, url)]
            if sys.stdout is not None and not sys.stdout.isatty():
                lines.append(ready_line(deployment, url))
            say(lines)

        with ends_when_frozen(config.router.step_timeout_s + FROZEN_S):
            HttpServer(create_app(deployment, on_end), deployment, announce).run_until_stopped(listener)
        left = deployment.fleet.supervisor.starting
        if left:
            logger.warning("%s still being started; this process ends without", " and ".join(left))
        return not left


def load_deployment(
    config: ServeConfig,
    profile_path: Path | None = None,
    replicas: Sequence[ReplicaConfig] | None = None,
    launch: LaunchReplica | None = None,
) -> Deployment:
    """Load model and chat template, start the engines and see each generate; `replicas` = None: `config` alone.

    `launch` brings engines of another kind.
    """
    if config.server.chat_template is not None:
        # Weights may take minutes; a file of the user's is worth a look before.
        check_chat_template(config.server.chat_template)
    replicas = replicas or alone(config)
    fleet = Fleet(replicas, config.router, launch or prepared_launch(replicas))
    try:
        tokenizer = fleet.first.tokenizer
        template = load_chat_template(tokenizer, config.server.chat_template)
        return Deployment(config, fleet, tokenizer, template, profile_path=profile_path)
    except BaseException:
        fleet.shutdown()
        raise


def prepared_launch(replicas: Sequence[ReplicaConfig]) -> LaunchReplica:
    """Return what launches the engine of a replica; what can be refused of any of them is before a weight is read."""
    prepared = Engine.builders([replica.config for replica in replicas])
    builders = dict(zip((replica.name for replica in replicas), prepared, strict=True))

    def launch(replica: ReplicaConfig) -> Engine:
        return launch_replica(replica, builders.pop(replica.name, None))

    return launch


def launch_replica(replica: ReplicaConfig, build: Callable[[str], Engine] | None = None) -> Engine:
    """Load and start the engine of a replica, and see it generate; raises SglkError. `build` makes a prepared one."""
    if replica.note is not None:
        logger.info("%s: %s", replica.name, replica.note)
    engine = build(replica.name) if build else Engine.from_config(replica.config, replica.name)
    try:
        engine.start()
        warm_up(engine)
    except BaseException:
        engine.shutdown(0.0)
        raise
    return engine
