"""From one replica's configuration to an engine that has generated a token."""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from sglk.config.api_keys import read_key
from sglk.config.fleet import ReplicaConfig
from sglk.errors import RunError
from sglk.models.files import require_local
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.compose import compose_command
from sglk.upstream.engine import UpstreamEngine
from sglk.upstream.interpreter import require_installed
from sglk.upstream.port import PortTaken, free_port
from sglk.upstream.probe import without_token
from sglk.upstream.process import UpstreamProcess

logger = logging.getLogger(__name__)

_PROBE_EVERY_S = 0.2

PORTS_TRIED = 3
"""Ports tried for an engine before its start counts as failed."""


def launch(replica: ReplicaConfig, cancelled: threading.Event | None = None) -> UpstreamEngine:
    """Start the engine of a replica, or find the server that its group names; raises SglkError where neither serves.

    A start that is `cancelled` meanwhile raises too.
    """
    cancelled = cancelled or threading.Event()
    if replica.group.url is not None:
        return _find(replica, replica.group.url, cancelled)
    return _start(replica, cancelled)


def launch_all(replicas: Sequence[ReplicaConfig]) -> dict[str, UpstreamEngine]:
    """Start several at the same time, as each may take minutes; when one fails all end, and its error is raised.

    Servers elsewhere may be down for reasons of their own: the others serve without those, which are looked for again.
    """
    cancelled = threading.Event()
    missing: list[RunError] = []
    with ThreadPoolExecutor(max_workers=len(replicas)) as pool:
        starts = {each.name: pool.submit(_launch_or_miss, each, cancelled, missing) for each in replicas}
        try:
            wait(starts.values(), return_when=FIRST_EXCEPTION)
            for start in starts.values():
                if start.done():
                    start.result()
            engines = {name: start.result() for name, start in starts.items()}
            if len(missing) == len(engines):
                raise missing[0]
            return engines
        except BaseException:
            cancelled.set()
            for start in starts.values():
                if start.exception() is None:
                    start.result().shutdown()
            raise


def _launch_or_miss(replica: ReplicaConfig, cancelled: threading.Event, missing: list[RunError]) -> UpstreamEngine:
    try:
        return launch(replica, cancelled)
    except RunError as error:
        if replica.group.url is None:
            raise
        missing.append(error)
        return UpstreamEngine(replica.name, address_of(replica.group.url), failure=str(error))


def address_of(url: str) -> str:
    """Return the address of a server's root, also where that of its OpenAI API is given."""
    return url.rstrip("/").removesuffix("/v1")


def log_file(replica: ReplicaConfig) -> Path:
    """Return where the output of a replica's engine goes."""
    return Path(replica.config.engine.logs) / f"{replica.name.replace('/', '-')}.log"


def _start(replica: ReplicaConfig, cancelled: threading.Event, ports: int = PORTS_TRIED) -> UpstreamEngine:
    try:
        return _start_once(replica, cancelled)
    except PortTaken as error:
        if ports == 1:
            raise
        logger.warning("%s; it is started again with another port", error)
        return _start(replica, cancelled, ports - 1)


def _start_once(replica: ReplicaConfig, cancelled: threading.Event) -> UpstreamEngine:
    command = compose_command(
        replica.config,
        port=free_port(),
        environ=os.environ,
        key=secrets.token_urlsafe(24),
        inherited=replica.inherited,
    )
    key = next(iter(command.secrets.values()), None)
    require_local(replica.config.model)
    require_installed(command)
    for note in command.notes:
        logger.info("%s: %s", replica.name, note)
    logger.info("%s: %s", replica.name, command.shell())
    process = UpstreamProcess(command, log=log_file(replica), label=replica.name)
    try:
        _await_token(process, command, replica, key, cancelled)
    except BaseException:
        process.stop()
        raise
    process.note_ready()
    return UpstreamEngine(
        replica.name,
        command.url,
        process=process,
        key=key,
        model=_served_name(replica),
        pause_s=replica.config.router.step_timeout_s,
    )


def _served_name(replica: ReplicaConfig) -> str:
    return replica.config.server.served_model_name or replica.config.model.name


def _await_token(
    process: UpstreamProcess,
    command: UpstreamCommand,
    replica: ReplicaConfig,
    key: str | None,
    cancelled: threading.Event,
) -> None:
    config = replica.config
    model = _served_name(replica)
    limit_s = config.engine.start_timeout_s
    over_s = time.monotonic() + limit_s
    while True:
        why = _unless_cancelled(partial(without_token, command.url, model, key), cancelled, process.label)
        # Asked last: a token from somebody else who took the port in between is none of its own.
        if (end := process.why_it_ended()) is not None:
            # One that the user has given stays the same in every start.
            exchangeable = config.engine.dist_init_addr is None and process.found_its_port_taken
            raise PortTaken(end) if exchangeable else RunError(end)
        if why is None:
            return
        if time.monotonic() >= over_s:
            said = " / ".join(process.tail(3)) or "nothing"
            raise RunError(
                f"{process.label} gave no token within engine.start_timeout_s={limit_s:g} s: {why}; its last words:"
                f" {said} (log: {process.log})"
            )
        process.pause(_PROBE_EVERY_S)


def _unless_cancelled(probe: Callable[[], str | None], cancelled: threading.Event, label: str) -> str | None:
    """Return what `probe` says, which takes minutes where a server hangs; raises RunError if nobody waits any more."""
    said: Future[str | None] = Future()

    def run() -> None:
        try:
            said.set_result(probe())
        except BaseException as error:  # noqa: BLE001
            said.set_exception(error)

    # One that is left behind ends with the process.
    threading.Thread(target=run, name=f"sglk-probe-{label}", daemon=True).start()
    while not cancelled.is_set():
        # Not by the timeout of `result`: the probe's own may be of the same kind.
        if wait([said], _PROBE_EVERY_S).done:
            return said.result()
    raise RunError(f"the start of {label} was given up")


def _find(replica: ReplicaConfig, url: str, cancelled: threading.Event) -> UpstreamEngine:
    address = address_of(url)
    file = replica.group.api_key_file
    key = None if file is None else read_key(file, f"api_key_file={file} of group {replica.group.name!r}")
    model = replica.config.server.served_model_name
    why = _unless_cancelled(partial(without_token, address, model, key), cancelled, replica.name)
    if why is not None:
        raise RunError(f"{replica.name}: the server at {address} does not generate: {why}")
    return UpstreamEngine(replica.name, address, key=key, model=model, pause_s=replica.config.router.step_timeout_s)
