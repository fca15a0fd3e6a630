"""The op seam for Prometheus and `/server_info`, read from the engine when asked for."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sglk.cluster.fleet import Fleet
from sglk.engine.op_report import OpReport
from sglk.server.fleet_metrics import REPLICA_LABELS


class OpCollector(Collector):
    """Turns the op reports of a fleet into metrics; labels are names of ops, of providers and of causes, all few."""

    def __init__(self, fleet: Fleet, model: str) -> None:
        self._fleet = fleet
        self._model = model

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not ask engines that are still loading."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one scrape."""
        fallbacks = GaugeMetricFamily(
            "sglk_op_fallbacks", "Shape classes of an op that run the reference.", labels=(*REPLICA_LABELS, "op")
        )
        quarantined = GaugeMetricFamily(
            "sglk_op_quarantined",
            "1 for an implementation that was switched off.",
            labels=(*REPLICA_LABELS, "op", "provider"),
        )
        faults = CounterMetricFamily(
            "sglk_op_faults",
            "Requests that failed because the result of an op was not finite.",
            labels=(*REPLICA_LABELS, "op", "provider", "cause"),
        )
        for name, engine in self._fleet.engines.items():
            report, values = engine.op_report(), (self._model, name.rpartition("/")[0], name)
            for op, count in Counter(choice.op for choice in report.choices if choice.fallback).items():
                fallbacks.add_metric((*values, op), count)
            for each in report.quarantines:
                quarantined.add_metric((*values, each.op, each.provider), 1)
            for key, count in report.faults.items():
                faults.add_metric((*values, *key), count)
        yield from (fallbacks, quarantined, faults)


def described(report: OpReport) -> dict[str, Any]:
    """Return the report as JSON: every choice with its reason, what was switched off, and failed requests by cause."""
    return {
        "choices": [
            {
                "op": choice.op,
                "shape": dict(choice.traits),
                "provider": choice.provider,
                "fallback": choice.fallback,
                "reason": choice.reason,
            }
            for choice in report.choices
        ],
        "quarantined": [
            {"op": each.op, "provider": each.provider, "reason": each.reason} for each in report.quarantines
        ],
        "faults": [
            {"op": op, "provider": provider, "cause": cause, "requests": count}
            for (op, provider, cause), count in report.faults.items()
        ],
    }
