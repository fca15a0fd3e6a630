"""What a gateway makes of the metrics of a server elsewhere."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from sglk.engine.messages import EngineStats
from sglk.server.metrics import counters
from sglk.upstream.scrape import read_stats, steps_of_vllm


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


@pytest.mark.parametrize("text", ["", "process_cpu_seconds_total 1.0\n", "sglang:num_running_reqs 1.0\n"])
def test_what_says_nothing_of_vllms_steps_is_no_sign_of_their_end(text: str) -> None:
    assert steps_of_vllm(text) is None


def test_vllms_steps_show_whatever_else_changes() -> None:
    text = "process_cpu_seconds_total {}\nvllm:generation_tokens_total {}\n"
    assert steps_of_vllm(text.format(1, 7)) == steps_of_vllm(text.format(2, 7)) != steps_of_vllm(text.format(2, 8))
