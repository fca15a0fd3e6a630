"""How fast `sglk simulate` is: a 32B model under load, prompts drawn, record made and all, on one core."""

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
    """Time one run on each chip."""
    count = 100 if quick else REQUESTS
    rows = []
    for name, words in DEVICES.items():
        load = (*SHAPE, f"workload.num_requests={count}", "profiles=none")
        composed: Composed[SimulateConfig] = compose("simulate", ["model=qwen32b", *words, *load])
        replicas = replica_configs(composed)
        began = time.process_time()
        record = simulate(composed.config, replicas, calibration="none")
        taken_s = time.process_time() - began
        speed = record.duration_s / taken_s
        rows.append(Row(f"service in a second, {name}", speed, "s", "bar, at least", SPEED_BAR))
        rows.append(Row(f"{count} requests, {name}", taken_s, "s", "bar, at most", SECONDS_BAR))
    return rows


if __name__ == "__main__":
    raise SystemExit(main("simulation_speed", measure, ("numpy",)))
