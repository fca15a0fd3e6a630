"""Latency histograms of single requests, the same for streaming and plain calls.

TTFT: receipt to first token, that is, queue time and prefill latency. ITL: each gap between tokens.
TPOT: (end-to-end - TTFT) / (n - 1), absent for n = 1.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sglk.engine.messages import Output

GAP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5)
WAIT_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 100, 200, 400)

LABELS = ("model", "group", "replica")

SGLANG_NAMES = ("time_to_first_token", "queue_time", "inter_token_latency", "e2e_request_latency")
"""Histograms that SGLang has under the same name, with `sglang:` before it."""


class LatencyMetrics:
    """The histograms of one model, with labels for the device group and the replica that answered."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._model = model
        self._replicas: dict[str, ReplicaLatency] = {}

        def histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"sglk_{name}_seconds", help_text, LABELS, registry=registry, buckets=buckets)

        self._families = {
            "time_to_first_token": histogram("time_to_first_token", "From receipt to the first token.", WAIT_BUCKETS_S),
            "queue_time": histogram("queue_time", "From receipt to the first step.", WAIT_BUCKETS_S),
            "prefill_latency": histogram("prefill_latency", "From the first step to the first token.", WAIT_BUCKETS_S),
            "inter_token_latency": histogram("inter_token_latency", "Gap between two tokens.", GAP_BUCKETS_S),
            "time_per_output_token": histogram("time_per_output_token", "Mean gap of one answer.", GAP_BUCKETS_S),
            "e2e_request_latency": histogram("e2e_request_latency", "From receipt to the last token.", WAIT_BUCKETS_S),
        }
        registry.register(_SglangNames([self._families[name] for name in SGLANG_NAMES]))

    def start(self) -> "RequestClock":
        """Start the clock of a request received now."""
        return RequestClock(self)

    def of_replica(self, name: str) -> "ReplicaLatency":
        """Return the histograms of a replica."""
        if name not in self._replicas:
            values = (self._model, name.rpartition("/")[0], name)
            self._replicas[name] = ReplicaLatency(*(family.labels(*values) for family in self._families.values()))
        return self._replicas[name]


@dataclass(frozen=True, slots=True)
class ReplicaLatency:
    """The histograms of one replica."""

    ttft: Histogram
    queue: Histogram
    prefill: Histogram
    itl: Histogram
    tpot: Histogram
    e2e: Histogram


@dataclass(slots=True)
class RequestClock:
    """Times of one request, on the monotonic clock."""

    metrics: LatencyMetrics
    received_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    last_s: float = 0.0
    queue_s: float | None = None
    """Part of the time to the first token; None where the engine does not say."""
    last: Output | None = None
    """The latest output."""
    replica: str = ""
    """Who answers."""
    moved_from: str = ""
    """Who failed the request before, if anybody."""

    @property
    def e2e_s(self) -> float:
        """Seconds from receipt to the latest token."""
        return self.last_s - self.received_s

    def tick(self, output: Output) -> None:
        """Observe `output`, which has just arrived."""
        now = time.perf_counter()
        self.last, self.replica = output, output.replica or self.replica
        self.moved_from = output.moved_from or self.moved_from
        if self.queue_s is None:
            self.queue_s = output.queue_s
        if output.token_ids:
            self._observe_tokens(self.metrics.of_replica(output.replica), now, output)
        self.last_s = now
        if output.finish is not None and output.finish.reason in ("stop", "length"):
            self._observe_end(self.metrics.of_replica(output.replica), output.completion_tokens)

    def _observe_tokens(self, replica: ReplicaLatency, now: float, output: Output) -> None:
        if self.first_s is None:
            self.first_s = now
            _observe_first(replica, now - self.received_s, output.queue_s)
            return
        count = len(output.token_ids)
        gap = (now - self.last_s) / count
        for _ in range(count):
            replica.itl.observe(gap)

    def _observe_end(self, replica: ReplicaLatency, tokens: int) -> None:
        replica.e2e.observe(self.e2e_s)
        if self.first_s is not None and tokens > 1:
            replica.tpot.observe((self.last_s - self.first_s) / (tokens - 1))


def _observe_first(replica: ReplicaLatency, ttft_s: float, queue_s: float | None) -> None:
    replica.ttft.observe(ttft_s)
    if queue_s is not None:
        replica.queue.observe(queue_s)
        replica.prefill.observe(ttft_s - queue_s)


class _SglangNames(Collector):
    """The same histograms under SGLang's names and label."""

    def __init__(self, families: list[Histogram]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for metric in (metric for family in self._families for metric in family.collect()):
            renamed = Metric(_sglang_name(metric.name), metric.documentation, metric.type)
            for sample in metric.samples:
                if not sample.name.endswith("_created"):
                    labels = {"model_name" if name == "model" else name: value for name, value in sample.labels.items()}
                    renamed.add_sample(_sglang_name(sample.name), labels, sample.value)
            yield renamed


def _sglang_name(name: str) -> str:
    return f"sglang:{name.removeprefix('sglk_')}"
