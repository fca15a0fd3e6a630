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
from sglk.server.tracing import tracing_to
from tests.server.serving import MODEL, serving

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

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


def test_a_collector_that_is_away_costs_no_request_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglk.server.tracing.EXPORT_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    began = time.monotonic()
    with tracing_to(url, MODEL) as on_end, serving(on_end=on_end) as served:
        assert served.post("/v1/completions", BODY).status_code == 200
    assert time.monotonic() - began < 10


def test_without_an_endpoint_nothing_of_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with tracing_to(None, MODEL) as on_end:
        assert on_end is None


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'sglk\[otel\]'") as caught, tracing_to("http://x:1", MODEL):
        pass
    assert "server.otlp_endpoint=http://x:1 needs OpenTelemetry" in str(caught.value)
