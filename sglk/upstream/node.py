"""A machine of an engine that spans several, other than the first: its process watched, and no requests answered."""

import logging
import os
import time
from collections.abc import Callable

from sglk.config.fleet import ReplicaConfig
from sglk.errors import RunError
from sglk.models.files import require_local
from sglk.upstream.compose import compose_command
from sglk.upstream.interpreter import require_installed
from sglk.upstream.launch import log_file
from sglk.upstream.port import free_port
from sglk.upstream.process import UpstreamProcess

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0

STEADY_S = 60.0
"""What runs so long was set up well: it ends because another machine did, and joins again."""


def run_node(replica: ReplicaConfig, sleep: Callable[[float], None] = time.sleep) -> None:
    """Run this machine's part of the engine until this process is told to end.

    The parts end together, so one that has run for a while is started again, with a growing pause. Raises RunError for
    one that ends soon after its first start, which no repetition mends.
    """
    pause_s, steady = FIRST_PAUSE_S, False
    while True:
        started_s = time.monotonic()
        why = _run_once(replica)
        if time.monotonic() - started_s >= STEADY_S:
            pause_s, steady = FIRST_PAUSE_S, True
        if not steady:
            raise RunError(why)
        logger.warning("%s; it is started again in %g s", why, pause_s)
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _run_once(replica: ReplicaConfig) -> str:
    """Run until it ends; returns how it ended."""
    command = compose_command(replica.config, port=free_port(), environ=os.environ, inherited=replica.inherited)
    require_local(replica.config.model)
    require_installed(command)
    for note in command.notes:
        logger.info("%s: %s", replica.name, note)
    logger.info("%s: %s", replica.name, command.shell())
    process = UpstreamProcess(command, log=log_file(replica), label=f"{replica.name} on machine {_rank(replica)}")
    try:
        process.wait()
        return process.why_it_ended() or ""
    finally:
        process.stop()


def _rank(replica: ReplicaConfig) -> int:
    return replica.config.engine.node_rank
