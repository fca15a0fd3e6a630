"""File descriptors: every connection takes one, and one that finds none is closed by the system without a word."""

import logging
import resource

logger = logging.getLogger(__name__)

OWN = 64
"""What the process itself holds open at most, beside connections: models, logs, libraries, the ranks' pipes."""

MOST = 2**16
"""One address has no more ports; who lets any number of requests wait expects no more clients at a time."""


def make_room(clients: int, each: int = 1) -> None:
    """Raise this process's limit of open files so that so many clients can connect; warn where the system forbids it.

    Every client takes `each` connections: where an engine elsewhere answers it, one more leads there. As far as the
    limit may go: many systems start with 1024, for the sake of programs that use select().
    """
    wanted = min(clients * each, MOST) + OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning(
            "at most %d files may be open, so that of %d clients some find their connection closed; raise the limit"
            " (`ulimit -n %d`, LimitNOFILE= of a systemd unit), or lower server.max_queued_requests",
            allowed,
            (wanted - OWN) // each,
            wanted,
        )
