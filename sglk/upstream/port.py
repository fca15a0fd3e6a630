"""Ports for engines, which take minutes before they listen there."""

import random
import socket
import threading
from collections import deque

from sglk.errors import RunError
from sglk.upstream.compose import LOOPBACK

PORTS = range(20000, 32768)
"""Below those that systems give to outgoing connections, one of which could take the port before the engine does."""

_given: deque[int] = deque(maxlen=1024)
_lock = threading.Lock()


class PortTaken(RunError):
    """An engine found its port taken by somebody who came in between."""


def free_port() -> int:
    """Return a port of the loopback interface that nobody holds at this moment, and that was given to nobody lately."""
    with _lock:
        for port in random.sample(PORTS, len(PORTS)):
            if port not in _given and _is_free(port):
                _given.append(port)
                return port
    raise RunError(f"no port of {LOOPBACK} from {PORTS.start} to {PORTS.stop - 1} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do; else one that has just ended would hold its port for a while.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
