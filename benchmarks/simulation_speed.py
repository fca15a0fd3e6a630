"""How fast `sglk simulate` is: a 32B model under load, prompts drawn, record made and all, on one core."""

import statistics
import time

from benchmarks.result import Row, main
from sglk.config.compose import Composed, compose
from sglk.config.fleet import replica_configs
from sglk.config.simulate_schema import SimulateConfig
from sglk.simulation.run import simulate

SPEED_BAR = 200.0
REQUESTS, SECONDS_BAR = 1000, 5.0
DEVICES = {
    "two Kunlun cards, w8a8": ("chip=kunlun", "runtime.tp_size=2", "runtime.quantization=w8a8"),
    "two A100 80 GB": ("chip=a100_80g", "runtime.tp_size=2"),
    "two H100": ("chip=h100", "runtime.tp_size=2"),
    # Requests end at different times, so that hardly a step is like the one before.
    "two Kunlun cards, w8a8, answers of all lengths": (
        "chip=kunlun",
        "runtime.tp_size=2",
        "runtime.quantization=w8a8",
        "workload.range_ratio=0.3",
    ),
    "two H100, answers of all lengths": ("chip=h100", "runtime.tp_size=2", "workload.range_ratio=0.3"),
}
SHAPE = ("workload=random", "workload.input_len=512", "workload.output_len=128", "workload.concurrency=64")


def measure(quick: bool) -> list[Row]:
    """Time runs on all chips in turns; of each the median counts."""
    count, rounds = (100, 1) if quick else (REQUESTS, 7)
    load = (*SHAPE, f"workload.num_requests={count}", "profiles=none")
    asked: dict[str, Composed[SimulateConfig]] = {
        name: compose("simulate", ["model=qwen32b", *words, *load]) for name, words in DEVICES.items()
    }
    runs = [{name: _seconds(composed) for name, composed in asked.items()} for _ in range(rounds)]
    rows = []
    for name in DEVICES:
        served_s, taken_s = (statistics.median(each) for each in zip(*(run[name] for run in runs), strict=True))
        rows.append(Row(f"service in a second, {name}", served_s / taken_s, "s", "bar, at least", SPEED_BAR))
        rows.append(Row(f"{count} requests, {name}", taken_s, "s", "bar, at most", SECONDS_BAR))
    return rows


def _seconds(composed: Composed[SimulateConfig]) -> tuple[float, float]:
    """Return the seconds of service of a run, and those that it takes the processor."""
    replicas = replica_configs(composed)
    began = time.process_time()
    record = simulate(composed.config, replicas, calibration="none")
    return record.duration_s, time.process_time() - began


if __name__ == "__main__":
    raise SystemExit(main("simulation_speed", measure, ("numpy",)))
