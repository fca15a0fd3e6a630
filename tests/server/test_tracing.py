import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from sglk.errors import ConfigError
from sglk.server.tracing import SpanMaker, tracing_to
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import ENDLESS, MODEL, patient_runner, serving, wait_until

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

BODY = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes spans over HTTP as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.service = ""
        self._decode: Any = None

    def take(self, path: str, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.service = _attributes(resource.resource)["service.name"]
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield collector, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _attributes(holder: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes}


def test_a_request_is_a_span_with_its_phases_below() -> None:
    # The spans are exported at the latest when tracing ends.
    with collecting() as (collector, url), tracing_to(url, MODEL) as on_end, serving(on_end=on_end) as served:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        served.post("/v1/completions", BODY, headers=headers)
        served.post("/v1/completions", {**BODY, "max_tokens": -1})
        served.get("/health")
    refused = [span for span in collector.spans if _attributes(span).get("sglk.outcome") == "refused"]
    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    assert collector.service == "sglk"
    assert len(refused) == 1
    assert len(collector.spans) == 5
    root = spans["POST /v1/completions"]
    assert root.parent_span_id.hex() == PARENT
    told = _attributes(root)
    assert told["sglk.request_id"] == "mine"
    assert told["gen_ai.request.model"] == MODEL
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (5, 4)
    assert (told["http.response.status_code"], told["sglk.replica"]) == (200, "left/0")
    phases = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(phase.parent_span_id == root.span_id for phase in phases)
    times = [
        root.start_time_unix_nano,
        *(t for each in phases for t in (each.start_time_unix_nano, each.end_time_unix_nano)),
    ]
    assert sorted(times) == times
    assert times[-1] <= root.end_time_unix_nano


class Spans:
    """What is told of every request's end, and the spans that are made of it, by the name of the root's request."""

    def __init__(self) -> None:
        self.memory = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.on_end = SpanMaker(provider.get_tracer("test"), MODEL)

    def of(self, request_id: str) -> tuple[ReadableSpan, list[ReadableSpan]]:
        """Return the root and, in order, what is below it, once the request is over."""
        wait_until(lambda: any(named(span, request_id) for span in self.memory.get_finished_spans()))
        spans = self.memory.get_finished_spans()
        (root,) = (span for span in spans if named(span, request_id))
        below = [span for span in spans if span.parent is not None and span.parent.span_id == root.context.span_id]
        for span in below:
            assert span.context.trace_id == root.context.trace_id
            assert root.start_time <= span.start_time <= span.end_time <= root.end_time  # type: ignore[operator]
        return root, below


def named(span: ReadableSpan, request_id: str) -> bool:
    return (span.attributes or {}).get("sglk.request_id") == request_id


def names(spans: list[ReadableSpan]) -> list[str]:
    return [span.name for span in spans]


def test_a_failure_is_an_error_with_its_reason_and_complete() -> None:
    spans = Spans()
    sick = ScriptedRunner(spoils=lambda row: "on fire" if row.num_generated >= 2 else None)
    with serving(sick, on_end=spans.on_end) as served:
        for stream in (False, True):
            served.post("/v1/completions", {**BODY, "stream": stream}, headers={"x-request-id": f"{stream}"})
            root, below = spans.of(f"{stream}")
            assert root.status.status_code is StatusCode.ERROR
            assert "on fire" in (root.status.description or "")
            told = root.attributes or {}
            assert (told["error.type"], told["sglk.outcome"]) == ("engine_error", "failed")
            assert told["sglk.replica"] == "left/0"
            assert names(below) == ["queue", "prefill", "decode"]


def test_a_failure_before_the_first_token_has_a_span_too() -> None:
    spans = Spans()
    with serving(ScriptedRunner(spoils=lambda row: "on fire"), on_end=spans.on_end) as served:
        served.post("/v1/completions", BODY, headers={"x-request-id": "early"})
        root, below = spans.of("early")
    assert root.status.status_code is StatusCode.ERROR
    assert (root.attributes or {})["sglk.replica"] == "left/0"
    assert names(below) == ["wait"]


def test_a_client_that_leaves_is_no_error_and_its_spans_end_with_it() -> None:
    spans = Spans()
    with serving(patient_runner(), on_end=spans.on_end, max_running_requests=1) as served:
        running = served.call("/v1/completions", ENDLESS, **{"x-request-id": "running"})
        wait_until(lambda: served.deployment.fleet.first.stats().generated_tokens > 3)
        waiting = served.call("/v1/completions", ENDLESS, **{"x-request-id": "waiting"})
        wait_until(lambda: served.deployment.fleet.first.stats().queued_requests == 1)
        waiting.close()
        root, below = spans.of("waiting")
        assert (root.attributes or {})["sglk.outcome"] == "aborted"
        assert root.status.status_code is StatusCode.UNSET
        assert names(below) == ["wait"]
        running.close()
        assert names(spans.of("running")[1]) == ["queue", "prefill", "decode"]


def test_what_another_group_took_over_says_from_whom_and_queued_there_meanwhile() -> None:
    spans, step = Spans(), threading.Event()
    runners = {"a": ScriptedRunner(gate=step), "b": ScriptedRunner()}
    with serving(runners, weights={"a": 1, "b": 0}, on_end=spans.on_end) as served:
        router = served.deployment.fleet.router
        connection = served.call("/v1/completions", BODY, **{"x-request-id": "moved"})
        wait_until(lambda: served.deployment.fleet.first.stuck_s > 0.2)
        router.set_weights({"b": 1}, "admin")
        router.give_up(router.groups["a"].replicas[0], "no step for 9 s")
        assert connection.getresponse().status == 200
        root, (queue, prefill, _) = spans.of("moved")
        told = root.attributes or {}
        assert (told["sglk.replica"], told["sglk.moved_from"], told["sglk.outcome"]) == ("b/0", "a/0", "completed")
        assert queue.end_time - queue.start_time >= 0.2e9  # type: ignore[operator]
        assert prefill.start_time >= queue.end_time  # type: ignore[operator]
        samples = [
            each for each in served.get("/metrics").text.splitlines() if each.startswith("sglk_queue_time_seconds_sum")
        ]
        (waited,) = (float(line.split()[-1]) for line in samples if 'group="b"' in line)
        assert waited >= 0.2
        step.set()
        connection.close()


def test_a_collector_that_is_away_costs_no_request_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglk.server.tracing.EXPORT_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    began = time.monotonic()
    with tracing_to(url, MODEL) as on_end, serving(on_end=on_end) as served:
        assert served.post("/v1/completions", BODY).status_code == 200
    assert time.monotonic() - began < 120


def test_without_an_endpoint_nothing_of_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with tracing_to(None, MODEL) as on_end:
        assert on_end is None


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'sglk\[otel\]'") as caught, tracing_to("http://x:1", MODEL):
        pass
    assert "server.otlp_endpoint=http://x:1 needs OpenTelemetry" in str(caught.value)
