"""How far the simulator may be trusted: its predictions against `sglk bench` on this machine's processor.

Each model is calibrated once. Then settings, loads and workloads that the calibration has not seen are predicted, and
measured on a running server with the load generator of `sglk bench`. Needs a machine on which nothing else runs.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

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
DEVICE = ("chip=cpu", "runtime.tp_size=1")
COMMON = (*DEVICE, "profiles=none")
EFFORT = ("calibrate.time_s=75", "calibrate.repeats=4", "calibrate.context_length=1024")
QUICK_EFFORT = ("calibrate.time_s=15", "calibrate.repeats=2", "calibrate.context_length=256")

_BELOW = ("ttft_s_p99",)
"""Metrics that mean something below saturation only."""


def measure(quick: bool) -> list[Row]:
    """Calibrate, predict and measure."""
    cells = QUICK if quick else CELLS
    points: list[Point] = []
    again: list[Point] = []
    with _own_folder() as folder:
        for model in dict.fromkeys(cell.model for cell in cells):
            _calibrate(model, QUICK_EFFORT if quick else EFFORT)
            with LaunchedServer(_server_words(model), log=folder / f"{model}.log") as server:
                for cell in cells:
                    if cell.model == model:
                        points += _cell(cell, server)
                # Measured once more: nothing predicts better than the thing itself.
                own = [cell for cell in cells if cell.model == model and not cell.saturated][:2]
                again += [_twice(cell, server, points) for cell in own]
    return [*_summary(points, again), *_details(points)]


def _cell(cell: Cell, server: Target) -> Iterator[Point]:
    rate = None if cell.load is None else cell.load * _capacity(cell)
    for name, changes in cell.settings.items():
        composed = _composed(cell, rate, changes)
        predicted = simulate(composed.config, replica_configs(composed)).summary
        measured = _measured(server, composed, changes)
        print(f"  {cell.model}, {cell.name}, {name}", file=sys.stderr, flush=True)
        yield Point(cell.model, cell.name, name, cell.saturated, _figures(measured), _figures(predicted))


def _twice(cell: Cell, server: Target, points: Sequence[Point]) -> Point:
    """Measure the first setting of a cell again, and take that for the prediction."""
    rate = None if cell.load is None else cell.load * _capacity(cell)
    name, changes = next(iter(cell.settings.items()))
    first = next(each for each in points if (each.model, each.cell, each.setting) == (cell.model, cell.name, name))
    second = _measured(server, _composed(cell, rate, changes), changes)
    return Point(cell.model, cell.name, name, cell.saturated, first.measured, _figures(second))


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
    record = drive(server, composed.config.workload, composed.config.bench)
    assert record.valid, record.warnings
    return record.summary


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


def _summary(points: Sequence[Point], again: Sequence[Point]) -> Iterator[Row]:
    for metric in METRICS:
        found = spread(errors(points, metric, saturated=metric not in _BELOW))
        where = " below saturation" if metric in _BELOW else ""
        yield Row(
            f"{metric}: median error of {found.count} points{where}", found.median, "", "bar, at most", BARS[metric]
        )
        yield Row(f"{metric}: p90 error{where}", found.p90, "")
        yield Row(f"{metric}: measured twice, median difference", spread(errors(again, metric)).median, "")
    for metric in METRICS:
        tie = spread(errors(again, metric)).p90
        tau = rank_correlation(points, metric)
        if tau is not None:
            yield Row(f"{metric}: rank correlation of settings", tau, "", "bar, at least", TAU_BAR)
        apart = rank_correlation(points, metric, tie)
        if apart is not None:
            yield Row(
                f"{metric}: rank correlation of settings more than {tie:.1%} apart", apart, "", "bar, at least", TAU_BAR
            )
        regret = spread(regrets(points, metric))
        yield Row(f"{metric}: regret, median of {regret.count} cells", regret.median, "", "bar, at most", REGRET_BAR)
        yield Row(f"{metric}: regret, worst", max(regrets(points, metric)), "")


def _details(points: Sequence[Point]) -> Iterator[Row]:
    for point in points:
        for metric in METRICS:
            measured, predicted = point.measured[metric], point.predicted[metric]
            if measured is not None and predicted is not None:
                unit = "tok/s" if metric == "output_throughput" else "s"
                name = f"{point.model} | {point.cell} | {point.setting} | {metric}"
                yield Row(name, predicted, unit, "measured", measured)


if __name__ == "__main__":
    raise SystemExit(main("fidelity", measure, ("torch", "numpy"), page))
