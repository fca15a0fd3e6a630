"""Who a request is: its id, and what became of it, known to everything that runs for it."""

import os
import re
import time
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import Scope

from sglk.engine.about import requests_at_work
from sglk.server.headers import header_of
from sglk.server.latency import RequestClock

HEADER = b"x-request-id"
"""Taken from the client where it is sane, and always returned."""

_SANE = re.compile(rb"[A-Za-z0-9._~:/+=@#-]{1,128}")

_OPEN: dict[str, "RequestRecord"] = {}
"""By what the engine calls their answers: requests that an engine's thread may have something to say of."""

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


def new_hex() -> str:
    """Return 32 random hexadecimal digits, by which something can be called."""
    return os.urandom(16).hex()


def new_record(scope: Scope) -> RequestRecord:
    """Return the record of a request that has just arrived, and make it the current one."""
    given = header_of(scope, HEADER)
    request_id = given.decode() if given is not None and _SANE.fullmatch(given) else new_hex()
    record = RequestRecord(request_id, scope["method"], scope["path"])
    # Never reset: each request is a task with a context of its own, in which the server's last words are said too.
    _CURRENT.set(record)
    return record


def follow(record: RequestRecord, answer_ids: Sequence[str], clocks: Sequence[RequestClock]) -> None:
    """Note what the engine calls the answers of `record`, whose times `clocks` take, until `forget`."""
    record.answer_ids, record.clocks = answer_ids, clocks
    _OPEN.update(dict.fromkeys(answer_ids, record))


def forget(answer_ids: Iterable[str]) -> None:
    """Follow answers no longer; unknown ones are ignored."""
    for answer_id in answer_ids:
        _OPEN.pop(answer_id, None)


def current_record() -> RequestRecord | None:
    """Return the record of the request for which the caller runs."""
    return _CURRENT.get()


def current_request_id() -> str | None:
    """Return the id of the request for which the caller runs."""
    record = _CURRENT.get()
    return None if record is None else record.request_id


def ids_told_of() -> list[str]:
    """Return the ids of the requests that a line logged by the caller is about: one, or those of an engine's step."""
    if (request_id := current_request_id()) is not None:
        return [request_id]
    records = ((answer_id, _OPEN.get(answer_id)) for answer_id in requests_at_work())
    # One that no client sent, such as the first of an engine, has no other name.
    return list(dict.fromkeys(answer_id if record is None else record.request_id for answer_id, record in records))
