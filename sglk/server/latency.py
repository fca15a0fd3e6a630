"""Latency histograms of single requests, the same for streaming and plain calls.

TTFT: receipt to first token. ITL: each gap between tokens. TPOT: (end-to-end - TTFT) / (n - 1), absent for n = 1.
"""

import time
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram

from sglk.engine.messages import Output

GAP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5)
WAIT_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 100, 200, 400)

LABELS = ("model", "group")


class LatencyMetrics:
    """The histograms of one model and device group."""

    def __init__(self, registry: CollectorRegistry, model: str, group: str) -> None:
        def histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"sglk_{name}_seconds", help_text, LABELS, registry=registry, buckets=buckets)
            return metric.labels(model, group)

        self.ttft = histogram("time_to_first_token", "From receipt to the first token.", WAIT_BUCKETS_S)
        self.itl = histogram("inter_token_latency", "Gap between two tokens of one answer.", GAP_BUCKETS_S)
        self.tpot = histogram("time_per_output_token", "Mean gap of one answer, first token excluded.", GAP_BUCKETS_S)
        self.e2e = histogram("e2e_request_latency", "From receipt to the last token.", WAIT_BUCKETS_S)

    def start(self) -> "RequestClock":
        """Start the clock of a request received now."""
        return RequestClock(self)


@dataclass(slots=True)
class RequestClock:
    """Times of one request, on the monotonic clock."""

    metrics: LatencyMetrics
    received_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    last_s: float = 0.0

    @property
    def e2e_s(self) -> float:
        """Seconds from receipt to the latest token."""
        return self.last_s - self.received_s

    def tick(self, output: Output) -> None:
        """Observe `output`, which has just arrived."""
        now = time.perf_counter()
        if output.token_ids:
            self._observe_tokens(now, len(output.token_ids))
        self.last_s = now
        if output.finish is not None and output.finish.reason in ("stop", "length"):
            self._observe_end(output.completion_tokens)

    def _observe_tokens(self, now: float, count: int) -> None:
        if self.first_s is None:
            self.first_s = now
            self.metrics.ttft.observe(now - self.received_s)
            return
        gap = (now - self.last_s) / count
        for _ in range(count):
            self.metrics.itl.observe(gap)

    def _observe_end(self, tokens: int) -> None:
        self.metrics.e2e.observe(self.e2e_s)
        if self.first_s is not None and tokens > 1:
            self.metrics.tpot.observe((self.last_s - self.first_s) / (tokens - 1))
