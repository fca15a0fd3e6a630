"""Request counters that leave nobody out: received = completed + refused + aborted + failed + in flight.

Counted here, around everything else, because a refusal may come before any route is entered (keys, size, JSON).
"""

from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglk.errors import RequestError

Outcome = Literal["completed", "refused", "aborted", "failed"]

ABORTED = "aborted"
"""Code of the error that tells a client of an answer which was cut off by a shutdown or an operator."""

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left; nobody receives it."""

GENERATION_ROUTES = frozenset({"/v1/completions", "/v1/chat/completions", "/generate"})

_SCOPE_KEY = "sglk.request_record"


class RequestCounters:
    """Counters of HTTP generation requests; label values come from the configuration alone, never from a request."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        received = Counter("sglk_requests_received", "Generation requests received.", ("model",), registry=registry)
        in_flight = Gauge(
            "sglk_requests_in_flight", "Generation requests not answered yet.", ("model",), registry=registry
        )
        self.received = received.labels(model)
        self.in_flight = in_flight.labels(model)
        self._families: dict[str, Counter | Gauge] = {"received": received, "in_flight": in_flight}
        finished = {
            "completed": "Requests answered in full.",
            "refused": "Requests answered with a 4xx status: invalid, unauthorised or too many.",
            "aborted": "Requests whose client left, or that were cut off by a shutdown or by force.",
            "failed": "Requests that the server failed to answer.",
        }
        self.outcomes: dict[Outcome, Counter] = {}
        for outcome in get_args(Outcome):
            family = Counter(f"sglk_requests_{outcome}", finished[outcome], ("model",), registry=registry)
            self._families[outcome], self.outcomes[outcome] = family, family.labels(model)

    def counts(self) -> dict[str, int]:
        """Return requests received, in flight, and by outcome."""
        return {name: int(next(iter(each.collect())).samples[0].value) for name, each in self._families.items()}


@dataclass(slots=True)
class _Record:
    status: int | None = None
    outcome: Outcome | None = None

    def conclude(self) -> Outcome:
        if self.outcome is not None:
            return self.outcome
        if self.status is None or self.status >= 500:
            return "failed"
        if self.status == CLIENT_CLOSED_REQUEST:
            return "aborted"
        return "refused" if self.status >= 400 else "completed"


def set_outcome(scope: Scope, outcome: Outcome) -> None:
    """State how a request ended where its status cannot tell, as in a stream that began with 200."""
    record = scope.get(_SCOPE_KEY)
    if record is not None:
        record.outcome = outcome


def set_failure(scope: Scope, error: RequestError) -> None:
    """State that a request ended with `error`, in a stream that had begun as well as in a plain answer."""
    if error.code == ABORTED:
        set_outcome(scope, "aborted")
    else:
        set_outcome(scope, "refused" if error.status < 500 else "failed")


def outcome_of(scope: Scope) -> Outcome | None:
    """Return how a generation request ended; None for requests of other kinds."""
    record = scope.get(_SCOPE_KEY)
    return None if record is None else record.conclude()


class CountRequests:
    """ASGI middleware that counts generation requests and how they end."""

    def __init__(self, app: ASGIApp, counters: RequestCounters) -> None:
        self.app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the request if it is one for the engine."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in GENERATION_ROUTES:
            await self.app(scope, receive, send)
            return
        record = scope[_SCOPE_KEY] = _Record()

        async def noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        self._counters.received.inc()
        self._counters.in_flight.inc()
        try:
            await self.app(scope, receive, noting_status)
        finally:
            self._counters.in_flight.dec()
            self._counters.outcomes[record.conclude()].inc()
