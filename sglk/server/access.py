"""The outermost layer: an id for every request, and a line in the log when it is over."""

import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglk.server.counting import Outcome, outcome_of
from sglk.server.latency import RequestClock
from sglk.server.logs import FACTS
from sglk.server.request_record import HEADER, RequestRecord, new_record

logger = logging.getLogger(__name__)

OnEnd = Callable[[Scope, RequestRecord, Outcome | None], None]


class RecordRequests:
    """ASGI middleware that gives each request its record, returns its id as `x-request-id`, and logs its end.

    `on_end` is told the same. Requests that change or generate something are logged as `info`, probes and other
    reads as `debug`, and failures as `warning`.
    """

    def __init__(self, app: ASGIApp, on_end: OnEnd | None = None) -> None:
        self.app = app
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its id."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = new_record(scope)

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], (HEADER, record.request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, with_id)
        finally:
            outcome = outcome_of(scope)
            _log(record, outcome)
            if self._on_end is not None:
                self._on_end(scope, record, outcome)


def _log(record: RequestRecord, outcome: Outcome | None) -> None:
    level = _level(record, outcome)
    if not logger.isEnabledFor(level):
        return
    facts = _facts(record, outcome)
    # The path is the client's: written so that it cannot begin a line of its own.
    line = f"{record.method} {ascii(record.path)[1:-1]} {record.status or 'without a status'}"
    if outcome is not None:
        line += f" {outcome}"
    line += f" in {facts['seconds']:.3f} s"
    if facts.get("replica"):
        moved = f" (moved from {facts['moved_from']})" if "moved_from" in facts else ""
        line += f" at {facts['replica']}{moved}:"
        line += f" {facts['prompt_tokens']} prompt tokens, {facts['completion_tokens']} new ones"
    logger.log(level, "%s", line, extra={FACTS: facts})


def _level(record: RequestRecord, outcome: Outcome | None) -> int:
    if outcome == "failed" or record.status is None or record.status >= 500:
        return logging.WARNING
    return logging.DEBUG if record.method in ("GET", "HEAD") else logging.INFO


def _facts(record: RequestRecord, outcome: Outcome | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "seconds": round(time.perf_counter() - record.started_s, 6),
    }
    if outcome is not None:
        facts["outcome"] = outcome
    if record.answer_ids:
        facts["answers"] = list(record.answer_ids)
    if answered := [clock for clock in record.clocks if clock.last is not None]:
        facts |= answer_facts(answered)
    return facts


def answer_facts(clocks: list[RequestClock]) -> dict[str, Any]:
    """Return where a request's answers came from and how much they were; `clocks` have seen an output each."""
    outputs = [clock.last for clock in clocks if clock.last is not None]
    firsts = [clock.first_s - clock.received_s for clock in clocks if clock.first_s is not None]
    facts: dict[str, Any] = {
        "replica": ",".join(dict.fromkeys(clock.replica for clock in clocks if clock.replica)),
        "prompt_tokens": sum(output.prompt_tokens for output in outputs),
        "cached_tokens": sum(output.cached_tokens for output in outputs),
        "completion_tokens": sum(output.completion_tokens for output in outputs),
    }
    if moved := list(dict.fromkeys(clock.moved_from for clock in clocks if clock.moved_from)):
        facts["moved_from"] = ",".join(moved)
    if firsts:
        facts["ttft_s"] = round(min(firsts), 6)
    return facts
