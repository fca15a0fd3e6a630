"""What a gateway makes of the metrics of a server elsewhere."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from sglk.engine.messages import EngineStats
from sglk.server.metrics import counters
from sglk.upstream.scrape import read_stats


class Served(Collector):
    def __init__(self, stats: EngineStats) -> None:
        self._stats = stats

    def collect(self) -> list[CounterMetricFamily]:
        return [CounterMetricFamily(name, text, value=value) for name, value, text in counters(self._stats)]


def test_the_counters_of_a_server_of_sglk_are_what_its_engine_counted() -> None:
    registry = CollectorRegistry()
    stats = EngineStats(prompt_tokens=7, generated_tokens=5, steps=4, busy_s=0.375, retractions=1)
    registry.register(Served(stats))
    assert read_stats(generate_latest(registry).decode()) == stats
