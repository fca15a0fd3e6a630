"""Device groups, replicas and weights for Prometheus, read at each scrape."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sglk.cluster.breaker import BreakerState
from sglk.cluster.fleet import Fleet
from sglk.cluster.group import GroupState, Outcome
from sglk.engine.messages import EngineStats
from sglk.server.metrics import counters, gauges

REPLICA_LABELS = ("model", "group", "replica")
SGLANG_LABELS = ("model_name", "group", "replica")


class FleetCollector(Collector):
    """Metrics of every replica; label values come from the configuration alone."""

    def __init__(self, fleet: Fleet, model: str) -> None:
        self._fleet = fleet
        self._model = model

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not ask engines that are still loading."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one scrape."""
        scraped = GaugeMetricFamily("sglk_scrape_time_seconds", "Unix time of these figures.")
        scraped.add_metric((), time.time())
        yield scraped
        yield from self._engines()
        yield from self._replicas()
        yield from self._groups()

    def _engines(self) -> Iterator[Metric]:
        several = [(self._values(each.name), each.engine.stats()) for each in self._fleet.router.replicas]
        yield from _families(GaugeMetricFamily, gauges, several)
        yield from _families(CounterMetricFamily, counters, several)
        simulated = GaugeMetricFamily(
            "sglk_simulated", "1 = a simulated device: its answers mean nothing.", labels=REPLICA_LABELS
        )
        for name, engine in self._fleet.engines.items():
            simulated.add_metric(self._values(name), engine.simulated)
        yield simulated
        window = GaugeMetricFamily("sglk_max_running_requests", "Size of the window.", labels=REPLICA_LABELS)
        shortest = GaugeMetricFamily("sglk_radix_min_len", "Shortest prefix the cache keeps.", labels=REPLICA_LABELS)
        info = GaugeMetricFamily("sglk_replica_info", "Always 1.", labels=(*REPLICA_LABELS, "chip", "backend"))
        engines = self._fleet.engines
        for name, replica in self._fleet.configs.items():
            config = replica.config
            runtime = engines[name].runtime if name in engines else config.runtime
            window.add_metric(self._values(name), runtime.max_running_requests)
            shortest.add_metric(self._values(name), runtime.radix_min_len)
            info.add_metric((*self._values(name), config.chip.name, config.backend.name), 1)
        yield from (window, shortest, info)

    def _replicas(self) -> Iterator[Metric]:
        labels = REPLICA_LABELS
        picks = CounterMetricFamily("sglk_router_picks", "Requests sent to a replica.", labels=labels)
        moved = CounterMetricFamily("sglk_router_moved", "Requests it failed that another group took.", labels=labels)
        restarts = CounterMetricFamily("sglk_replica_restarts", "Times it was started again.", labels=labels)
        opened = CounterMetricFamily("sglk_breaker_opened", "Times its circuit breaker opened.", labels=labels)
        open_now = GaugeMetricFamily("sglk_replica_open_requests", "Requests it has not ended.", labels=labels)
        ready = GaugeMetricFamily("sglk_replica_ready", "1 = requests may be sent to it.", labels=labels)
        ended = CounterMetricFamily("sglk_router_requests", "How requests ended at it.", labels=(*labels, "outcome"))
        breaker = GaugeMetricFamily("sglk_breaker_state", "1 = the state it is in.", labels=(*labels, "state"))
        for replica in self._fleet.router.replicas:
            values, counted = self._values(replica.name), replica.counters
            picks.add_metric(values, counted.picks)
            moved.add_metric(values, counted.moved)
            restarts.add_metric(values, counted.restarts)
            opened.add_metric(values, replica.breaker.opened)
            open_now.add_metric(values, replica.open_requests)
            ready.add_metric(values, replica.ready)
            for outcome in get_args(Outcome):
                ended.add_metric([*values, outcome], counted.ended[outcome])
            for state in get_args(BreakerState):
                breaker.add_metric([*values, state], replica.breaker.state == state)
        yield from (picks, moved, restarts, opened, open_now, ready, ended, breaker)

    def _groups(self) -> Iterator[Metric]:
        router, labels = self._fleet.router, ("model", "group")
        weight = GaugeMetricFamily("sglk_group_weight", "Weight in force.", labels=labels)
        share = GaugeMetricFamily("sglk_group_share_ratio", "Share of the traffic by weight.", labels=labels)
        state = GaugeMetricFamily("sglk_group_state", "1 = the state it is in.", labels=(*labels, "state"))
        weights = router.weights
        shares = router.shares_by_weight(weights)
        for name, group in router.groups.items():
            weight.add_metric((self._model, name), weights.shares[name])
            share.add_metric((self._model, name), shares[name])
            for each in get_args(GroupState):
                state.add_metric((self._model, name, each), group.state == each)
        changes = CounterMetricFamily("sglk_weight_changes", "Changes of the weights.", labels=("model",))
        changes.add_metric((self._model,), weights.number)
        yield from (weight, share, state, changes)
        if self._fleet.weights_file is not None:
            bad = GaugeMetricFamily("sglk_weights_file_bad", "1 = the weights file is not followed.", labels=("model",))
            bad.add_metric((self._model,), self._fleet.weights_file.error is not None)
            yield bad
        if (ramp := self._fleet.ramp) is not None:
            rolled = GaugeMetricFamily(
                "sglk_ramp_rolled_back", "1 = the last ramp went back, for this reason.", labels=(*labels, "reason")
            )
            rolled.add_metric((self._model, ramp.plan.group, ramp.broken_by), ramp.state == "rolled_back")
            yield rolled

    def _values(self, replica: str) -> tuple[str, str, str]:
        return self._model, replica.rpartition("/")[0], replica


Family = type[GaugeMetricFamily] | type[CounterMetricFamily]
Figures = Callable[[EngineStats], Iterator[tuple[str, float, str]]]


def _families(
    family: Family,
    figures: Figures,
    several: Sequence[tuple[tuple[str, str, str], EngineStats]],
) -> Iterator[Metric]:
    """Yield one family per figure, with a sample for each replica."""
    rows = [(values, list(figures(stats))) for values, stats in several]
    for index, (name, _, text) in enumerate(rows[0][1] if rows else ()):
        metric = family(name, text, labels=SGLANG_LABELS if name.startswith("sglang:") else REPLICA_LABELS)
        for values, told in rows:
            metric.add_metric(values, told[index][1])
        yield metric
