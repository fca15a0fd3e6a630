"""Who a request is: its id, and what became of it, known to everything that runs for it."""

import re
import time
import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import Scope

from sglk.server.latency import RequestClock

HEADER = b"x-request-id"
"""Taken from the client where it is sane, and always returned."""

_SANE = re.compile(rb"[A-Za-z0-9._~:/+=@#-]{1,128}")

_CURRENT: ContextVar["RequestRecord | None"] = ContextVar("sglk_request", default=None)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One HTTP request."""

    request_id: str
    method: str
    path: str
    started_s: float = field(default_factory=time.perf_counter)
    started_ns: int = field(default_factory=time.time_ns)
    """Unix time."""
    status: int | None = None
    answer_ids: Sequence[str] = ()
    """What the engine calls its answers."""
    clocks: Sequence[RequestClock] = ()
    """Times and counts of each answer."""


def new_record(scope: Scope) -> RequestRecord:
    """Return the record of a request that has just arrived, and make it the current one."""
    given = next((value for name, value in scope["headers"] if name == HEADER), b"")
    request_id = given.decode() if _SANE.fullmatch(given) else uuid.uuid4().hex
    record = RequestRecord(request_id, scope["method"], scope["path"])
    # Never reset: each request is a task with a context of its own, in which the server's last words are said too.
    _CURRENT.set(record)
    return record


def current_record() -> RequestRecord | None:
    """Return the record of the request for which the caller runs."""
    return _CURRENT.get()


def current_request_id() -> str | None:
    """Return the id of the request for which the caller runs."""
    record = _CURRENT.get()
    return None if record is None else record.request_id
