"""OpenTelemetry: one span per generation request, with its queueing, prefill and decoding below it.

Spans are made when a request is over, from the times that were taken anyway. Names of attributes follow OpenTelemetry's
conventions for HTTP servers and generative AI; those that it has no name for begin with `sglk.`. The SDK's own
environment variables (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_RESOURCE_ATTRIBUTES`, ...) hold.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.types import Scope

import sglk
from sglk.engine.messages import Finish
from sglk.errors import ConfigError
from sglk.server.access import OnEnd, answer_facts
from sglk.server.counting import Outcome
from sglk.server.latency import RequestClock
from sglk.server.request_record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

INSTALL = "pip install 'sglk[otel]'"

EXPORT_TIMEOUT_S = 5.0
"""How long one attempt to reach the collector may take, also at the end of the process."""

_OPERATIONS = {"/v1/chat/completions": "chat"}


@contextmanager
def tracing_to(endpoint: str | None, model: str) -> Iterator[OnEnd | None]:
    """Yield what is to be told of every request's end, None without an endpoint; raises ConfigError without the SDK."""
    if endpoint is None:
        yield None
        return
    provider = _provider(endpoint)
    try:
        yield SpanMaker(provider.get_tracer("sglk", sglk.__version__), model)
    finally:
        provider.shutdown()


class SpanMaker:
    """Makes the spans of requests that are over."""

    def __init__(self, tracer: "Tracer", model: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._model = model
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, scope: Scope, record: RequestRecord, outcome: Outcome | None) -> None:
        """Make the spans of a generation request, below the span that its `traceparent` header names."""
        if outcome is None:
            return
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        over_s = time.perf_counter()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(
            f"{record.method} {record.path}",
            self._propagator.extract(headers),
            SpanKind.SERVER,
            self._attributes(record, outcome),
            start_time=record.started_ns,
        )
        if outcome == "failed":
            span.set_status(StatusCode.ERROR, _reason(record))
        below = set_span_in_context(span)
        for index, clock in enumerate(record.clocks):
            for name, start_s, end_s in _phases(clock, over_s):
                phase = self._tracer.start_span(
                    name,
                    below,
                    attributes={"sglk.answer": index, "sglk.replica": clock.replica},
                    start_time=_unix_ns(record, start_s),
                )
                phase.end(_unix_ns(record, end_s))
        span.end()

    def _attributes(self, record: RequestRecord, outcome: Outcome) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "http.request.method": record.method,
            "http.route": record.path,
            "gen_ai.operation.name": _OPERATIONS.get(record.path, "text_completion"),
            "gen_ai.request.model": self._model,
            "sglk.request_id": record.request_id,
            "sglk.outcome": outcome,
        }
        if record.status is not None:
            attributes["http.response.status_code"] = record.status
        if answered := [clock for clock in record.clocks if clock.last is not None]:
            facts = answer_facts(answered)
            attributes |= {
                "gen_ai.usage.input_tokens": facts["prompt_tokens"],
                "gen_ai.usage.output_tokens": facts["completion_tokens"],
                "gen_ai.response.finish_reasons": _finish_reasons(answered),
                "sglk.cached_tokens": facts["cached_tokens"],
                "sglk.replica": facts["replica"],
            }
            if "moved_from" in facts:
                attributes["sglk.moved_from"] = facts["moved_from"]
        if outcome == "failed":
            attributes["error.type"] = _error_type(record)
        return attributes


def _provider(endpoint: str) -> "TracerProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        message = f"server.otlp_endpoint={endpoint} needs OpenTelemetry ({error}); install it with: {INSTALL}"
        raise ConfigError(message) from error
    resource = Resource.create({"service.name": "sglk", "service.version": sglk.__version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _phases(clock: RequestClock, over_s: float) -> Iterator[tuple[str, float, float]]:
    """Yield name, start and end of what an answer went through; times are those of its clock.

    One that has no token went through `wait`, of which nobody knows how much was queueing.
    """
    if clock.first_s is None:
        yield "wait", clock.received_s, over_s
        return
    started_s = clock.received_s + (clock.queue_s or 0.0)
    yield "queue", clock.received_s, started_s
    yield "prefill", started_s, clock.first_s
    yield "decode", clock.first_s, clock.last_s


def _failures(record: RequestRecord) -> Iterator[Finish]:
    finishes = (clock.last.finish for clock in record.clocks if clock.last is not None)
    return (finish for finish in finishes if finish is not None and finish.reason == "error")


def _reason(record: RequestRecord) -> str | None:
    return next((finish.message for finish in _failures(record)), None)


def _error_type(record: RequestRecord) -> str:
    """Return OpenTelemetry's `error.type`: the code of the error, or else the status."""
    failure = next(_failures(record), None)
    if failure is None:
        return str(record.status or "no_answer")
    return failure.code or "engine_error"


def _unix_ns(record: RequestRecord, at_s: float) -> int:
    return record.started_ns + round(1e9 * (at_s - record.started_s))


def _finish_reasons(clocks: list[RequestClock]) -> list[str]:
    finishes = (clock.last.finish for clock in clocks if clock.last is not None)
    return ["none" if finish is None else finish.reason for finish in finishes]
