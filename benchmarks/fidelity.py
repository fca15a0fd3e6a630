"""How far the simulator may be trusted: its predictions against `sglk bench` on this machine's processor.

In each of several rounds a model is calibrated, and settings, loads and workloads that the calibration has not seen are
predicted, then measured on a running server with the load generator of `sglk bench`: all of them in turn, every other
round backwards. A machine is not as fast at all times, so the median of the rounds counts, of predictions and of
measurements. Needs a machine on which nothing else runs, for about 16 minutes.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.fidelity_cells import BASE, CELLS, MODELS, QUICK, Cell
from benchmarks.fidelity_page import page
from benchmarks.fidelity_score import METRICS, Figures, Point, errors, rank_correlation, regrets, spread
from benchmarks.result import Row, main
from sglk.bench.run import measure as drive
from sglk.bench.target import LaunchedServer, Target
from sglk.config.compose import Composed, compose
from sglk.config.fleet import replica_configs
from sglk.config.simulate_schema import SimulateConfig
from sglk.simulation.run import simulate

BARS = {"output_throughput": 0.08, "tpot_s_p50": 0.08, "ttft_s_p50": 0.12, "ttft_s_p99": 0.20}
TAU_BAR, REGRET_BAR = 0.85, 0.03
ROUNDS, QUICK_ROUNDS = 3, 2
DEVICE = ("chip=cpu", "runtime.tp_size=1")
COMMON = (*DEVICE, "profiles=none")
EFFORT = (
    "calibrate.time_s=24",
    "calibrate.repeats=1",
    "calibrate.context_length=1024",
    "calibrate.longest_step_s=1",
)
"""Of one round."""
QUICK_EFFORT = ("calibrate.time_s=10", "calibrate.repeats=1", "calibrate.context_length=256")

_BELOW = ("ttft_s_p99",)
"""Metrics that mean something below saturation only."""


def measure(quick: bool) -> list[Row]:
    """Calibrate, predict and measure."""
    cells = QUICK if quick else CELLS
    effort, rounds = (QUICK_EFFORT, QUICK_ROUNDS) if quick else (EFFORT, ROUNDS)
    points: list[Point] = []
    with _own_folder() as folder:
        for model in dict.fromkeys(cell.model for cell in cells):
            _calibrate(model, effort)
            asked = [each for cell in cells if cell.model == model for each in _questions(cell)]
            for number in range(rounds):
                if number:
                    _calibrate(model, effort)
                for each in asked:
                    each.predict()
                with LaunchedServer(_server_words(model), log=folder / f"{model}.log") as server:
                    _measure_round(asked, server, number)
            points += [each.point() for each in asked]
    return [*_summary(points), *_details(points)]


@dataclass(frozen=True, eq=False)
class _Question:
    """One setting in one cell: what it is predicted to come to, and how to measure it."""

    cell: Cell
    setting: str
    composed: Composed[SimulateConfig]
    predicted: list[Figures] = field(default_factory=list)
    measured: list[Figures] = field(default_factory=list)

    def predict(self) -> None:
        """Ask the simulator, with the calibration that there is now."""
        found = simulate(self.composed.config, replica_configs(self.composed))
        self.predicted.append(_figures(found.summary))

    def point(self) -> Point:
        """Return what came out."""
        cell = self.cell
        return Point(cell.model, cell.name, self.setting, cell.saturated, self.measured, self.predicted)


def _questions(cell: Cell) -> Iterator[_Question]:
    rate = None if cell.load is None else cell.load * _capacity(cell)
    for name, changes in cell.settings.items():
        yield _Question(cell, name, _composed(cell, rate, changes))


def _measure_round(asked: Sequence[_Question], server: Target, number: int) -> None:
    """Measure everything once, every other time backwards."""
    for each in asked if number % 2 == 0 else reversed(asked):
        print(f"  round {number + 1}: {each.cell.model}, {each.cell.name}, {each.setting}", file=sys.stderr, flush=True)
        each.measured.append(_figures(_measured(server, each.composed, each.cell.settings[each.setting])))


def _capacity(cell: Cell) -> float:
    """Return the requests per second that the base setting serves when as many as fit run at a time."""
    words = [*cell.words(None), f"workload.concurrency={BASE['max_running_requests']}", "workload.num_requests=64"]
    composed: Composed[SimulateConfig] = compose("simulate", [*COMMON, *MODELS[cell.model], *_settings({}), *words])
    found = simulate(composed.config, replica_configs(composed)).summary["request_throughput"]
    assert found is not None
    return found


def _composed(cell: Cell, rate: float | None, changes: Mapping[str, object]) -> Composed[SimulateConfig]:
    words = [*COMMON, *MODELS[cell.model], *_settings(changes), *cell.words(rate), "bench.progress=false"]
    return compose("simulate", words)


def _settings(changes: Mapping[str, object]) -> list[str]:
    return [f"runtime.{key}={_typed(value)}" for key, value in {**BASE, **changes}.items()]


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _measured(server: Target, composed: Composed[SimulateConfig], changes: Mapping[str, object]) -> Figures:
    server.reconfigure({**BASE, **changes})
    _warm_up(server)
    record = drive(server, composed.config.workload, composed.config.bench)
    assert record.valid, record.warnings
    return record.summary


def _warm_up(server: Target) -> None:
    """Let every number of requests decode together once, as the first minutes of service do.

    An engine whose KV pool is new records a step when so many come for the first time, which takes several steps.
    """
    count = BASE["max_running_requests"]
    assert isinstance(count, int)
    sampling = [{"max_new_tokens": 2 + index, "temperature": 0, "ignore_eos": True} for index in range(count)]
    body = {"input_ids": [[100 + index, 200, 300, 400] for index in range(count)], "sampling_params": sampling}
    httpx.post(f"{server.url}/generate", json=body, timeout=60, trust_env=False).raise_for_status()


def _figures(summary: Mapping[str, float | None]) -> Figures:
    return {metric: summary[metric] for metric in METRICS}


def _server_words(model: str) -> list[str]:
    return [*COMMON, *MODELS[model], *_settings({})]


def _calibrate(model: str, effort: Sequence[str]) -> None:
    words = [*DEVICE, *MODELS[model], *_settings({}), *effort, "calibrate.progress=false"]
    subprocess.run([sys.executable, "-m", "sglk", "calibrate", *words], check=True, stdout=sys.stderr)


@contextmanager
def _own_folder() -> Iterator[Path]:
    """Work where no other calibration lies about, and leave nothing behind."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def _summary(points: Sequence[Point]) -> Iterator[Row]:
    for metric in METRICS:
        found = spread(errors(points, metric, saturated=metric not in _BELOW))
        where = " below saturation" if metric in _BELOW else ""
        yield Row(
            f"{metric}: median error of {found.count} points{where}", found.median, "", "bar, at most", BARS[metric]
        )
        yield Row(f"{metric}: p90 error{where}", found.p90, "")
        noise = spread([share for point in points for share in point.noise(metric)])
        yield Row(f"{metric}: a run from the median of its setting, p90", noise.p90, "")
        drift = spread([share for point in points for share in point.drift(metric)])
        yield Row(f"{metric}: a prediction from the median of its calibrations, p90", drift.p90, "")
    for metric in METRICS:
        yield from _ranks(points, metric)


def _ranks(points: Sequence[Point], metric: str) -> Iterator[Row]:
    for told_apart, which in ((False, "all"), (True, "those that all runs order alike")):
        tau = rank_correlation(points, metric, told_apart=told_apart)
        if tau is not None:
            name = f"{metric}: rank correlation of {tau[1]} pairs of settings, {which}"
            yield Row(name, tau[0], "", "bar, at least", TAU_BAR)
    all_, beyond = regrets(points, metric), regrets(points, metric, told_apart=True)
    name = f"{metric}: regret, median of {len(all_)} cells"
    yield Row(name, spread(all_).median, "", "bar, at most", REGRET_BAR)
    yield Row(f"{metric}: regret, worst", max(all_), "", "bar, at most", REGRET_BAR)
    yield Row(f"{metric}: regret that all runs agree on, worst", max(beyond), "", "bar, at most", REGRET_BAR)


def _details(points: Sequence[Point]) -> Iterator[Row]:
    for point in points:
        for metric in METRICS:
            measured, predicted = point.measured(metric), point.predicted(metric)
            if measured is None or predicted is None:
                continue
            unit = "tok/s" if metric == "output_throughput" else "s"
            name = f"{point.model} | {point.cell} | {point.setting} | {metric}"
            yield Row(name, predicted, unit, "measured", measured)
            for number, run in enumerate(point.runs):
                yield Row(f"{name} | run {number + 1}", run[metric] or 0.0, unit)


if __name__ == "__main__":
    raise SystemExit(main("fidelity", measure, ("torch", "numpy"), page))
