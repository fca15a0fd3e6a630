"""How far the simulator may be trusted: its predictions against `sglk bench` on this machine's processor.

A model is calibrated, and settings, loads and workloads that the calibration has not seen are predicted, then measured
on a running server with the load generator of `sglk bench`. A machine is not as fast at all times. So the settings of a
cell are measured one right after the other in several passes, every other one backwards, and compared within a pass;
a calibration stands on either side of each pass, and of predictions too the median counts. Beside every run another
process takes a few steps of the same model, which tell how much of an error is that of a machine which changes. Needs a
machine on which nothing else runs, for about half an hour.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile

import httpx

from benchmarks.fidelity_cells import BASE, CELLS, MODELS, QUICK, Cell
from benchmarks.fidelity_pace import Calibrated, Pacer, Seconds, mean
from benchmarks.fidelity_page import page
from benchmarks.fidelity_score import (
    METRICS,
    Figures,
    Point,
    errors,
    middle,
    paired_noise,
    rank_correlation,
    regrets,
    spread,
)
from benchmarks.result import Row, main
from sglk.bench.run import measure as drive
from sglk.bench.target import LaunchedServer, Target
from sglk.config.compose import Composed, compose
from sglk.config.fleet import replica_configs
from sglk.config.simulate_schema import SimulateConfig
from sglk.simulation.run import simulate

BARS = {"output_throughput": 0.08, "tpot_s_p50": 0.08, "ttft_s_p50": 0.12, "ttft_s_p99": 0.20}
TAU_BAR, REGRET_BAR = 0.85, 0.03
PASSES, QUICK_PASSES = 5, 2
DEVICE = ("chip=cpu", "runtime.tp_size=1")
COMMON = (*DEVICE, "profiles=none")
EFFORT = (
    "calibrate.time_s=20",
    "calibrate.repeats=1",
    "calibrate.context_length=1024",
    "calibrate.longest_step_s=1",
)
"""Of one calibration of six."""
QUICK_EFFORT = ("calibrate.time_s=10", "calibrate.repeats=1", "calibrate.context_length=256")


def measure(quick: bool) -> list[Row]:
    """Calibrate, predict and measure."""
    cells = QUICK if quick else CELLS
    points: list[Point] = []
    with _own_folder() as folder:
        for model in dict.fromkeys(cell.model for cell in cells):
            points += _measure_model(model, [cell for cell in cells if cell.model == model], folder, quick)
    return [*_summary(points), *_details(points)]


def _measure_model(model: str, cells: Sequence[Cell], folder: Path, quick: bool) -> Iterator[Point]:
    effort, passes = (QUICK_EFFORT, QUICK_PASSES) if quick else (EFFORT, PASSES)
    with Pacer(_model_words(model)) as pacer:
        calibrated = [_calibrate(model, effort, folder / f"{model}-0.json")]
        # Rates are shares of what this first calibration says can be served as fast as the machine is now.
        first = calibrated[0].at(calibrated[0].pace(pacer.seconds()), folder / "now.json")
        asked = [[*_questions(cell, first)] for cell in cells]
        with LaunchedServer(_server_words(model), log=folder / f"{model}.log") as server:
            for number in range(passes):
                _measure_pass(asked, server, pacer, number)
                calibrated.append(_calibrate(model, effort, folder / f"{model}-{number + 1}.json"))
    for cell in asked:
        for each in cell:
            yield each.point(calibrated, folder / "now.json")


@dataclass(frozen=True, eq=False)
class _Question:
    """One setting in one cell: what it is predicted to come to, and how to measure it."""

    cell: Cell
    setting: str
    composed: Composed[SimulateConfig]
    measured: list[Figures] = field(default_factory=list)
    steps: list[Seconds] = field(default_factory=list)
    """What steps took beside the measurements of the cell, in each pass."""

    def predict(self, calibrated: Calibrated, pace: float, path: Path) -> Figures:
        """Ask the simulator, on a machine where all takes `pace` times as long as in a calibration."""
        place = str(calibrated.at(pace, path))
        return _figures(simulate(self.composed.config, replica_configs(self.composed), calibration=place).summary)

    def point(self, calibrated: Sequence[Calibrated], path: Path) -> Point:
        """Return what came out."""
        cell, predicted = self.cell, [self.predict(each, 1.0, path) for each in calibrated]
        paces = [[each.pace(seconds) for seconds in self.steps] for each in calibrated]
        at_pace = [
            middle([self.predict(each, pace, path) for pace in paced])
            for each, paced in zip(calibrated, paces, strict=True)
        ]
        return Point(
            cell.model,
            cell.name,
            self.setting,
            cell.arrival_bound,
            cell.saturated,
            self.measured,
            predicted,
            at_pace,
            [statistics.median(each) for each in zip(*paces, strict=True)],
        )


def _questions(cell: Cell, calibration: Path) -> Iterator[_Question]:
    rate = None if cell.load is None else cell.load * _capacity(cell, calibration)
    for name, changes in cell.settings.items():
        yield _Question(cell, name, _composed(cell, rate, changes))


def _measure_pass(asked: Sequence[Sequence[_Question]], server: Target, pacer: Pacer, number: int) -> None:
    """Measure everything once, the settings of a cell one after the other, every other time backwards."""
    beside = [pacer.seconds()]
    for cell in asked:
        for each in cell if number % 2 == 0 else reversed(cell):
            place = f"{each.cell.model}, {each.cell.name}, {each.setting}"
            print(f"  pass {number + 1}: {place}", file=sys.stderr, flush=True)
            each.measured.append(_figures(_measured(server, each.composed, each.cell.settings[each.setting])))
            beside.append(pacer.seconds())
        # One for all settings of the cell, which are compared.
        for each in cell:
            each.steps.append(mean(beside))
        beside = beside[-1:]


def _capacity(cell: Cell, calibration: Path) -> float:
    """Return the requests per second that the base setting serves when as many as fit run at a time."""
    words = [*cell.words(None), f"workload.concurrency={BASE['max_running_requests']}", "workload.num_requests=64"]
    composed: Composed[SimulateConfig] = compose("simulate", [*COMMON, *MODELS[cell.model], *_settings({}), *words])
    record = simulate(composed.config, replica_configs(composed), calibration=str(calibration))
    found = record.summary["request_throughput"]
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


def _calibrate(model: str, effort: Sequence[str], path: Path) -> Calibrated:
    words = [*_model_words(model), *effort, "calibrate.progress=false"]
    subprocess.run([sys.executable, "-m", "sglk", "calibrate", *words], check=True, stdout=sys.stderr)
    (written,) = Path("calibration").iterdir()
    return Calibrated.read(copyfile(written, path), _model_words(model))


def _model_words(model: str) -> list[str]:
    return [*DEVICE, *MODELS[model], *_settings({})]


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
        kept, which = _counted(points, metric)
        found = spread(errors(kept, metric))
        yield Row(
            f"{metric}: median error of {found.count} points{which}", found.median, "", "bar, at most", BARS[metric]
        )
        yield Row(f"{metric}: p90 error{which}", found.p90, "")
        at_pace = spread(errors(kept, metric, at_pace=True))
        yield Row(f"{metric}: median error{which}, at the machine's pace beside the runs", at_pace.median, "")
        noise = spread([share for point in points for share in point.noise(metric)])
        yield Row(f"{metric}: a run from the median of its setting, p90", noise.p90, "")
        yield Row(
            f"{metric}: the same beside the others of its pass, p90", spread(paired_noise(points, metric)).p90, ""
        )
        drift = spread([share for point in points for share in point.drift(metric)])
        yield Row(f"{metric}: a prediction from the median of its calibrations, p90", drift.p90, "")
    away = [abs(pace - 1) for point in points for pace in point.paces]
    yield Row("steps beside a run from those of the calibrations, median", spread(away).median, "")
    yield Row("steps beside a run from those of the calibrations, p90", spread(away).p90, "")
    for metric in METRICS:
        yield from _ranks(points, metric)


def _counted(points: Sequence[Point], metric: str) -> tuple[list[Point], str]:
    """Return the points where a metric says something of the service, and in words which they are."""
    if metric == "output_throughput":
        return [point for point in points if not point.arrival_bound], " where the service sets the pace"
    if metric == "ttft_s_p99":
        return [point for point in points if not point.saturated], " below saturation"
    return list(points), ""


def _ranks(points: Sequence[Point], metric: str) -> Iterator[Row]:
    # Where requests come slowly enough, any setting gives as many tokens a second as are asked for.
    kept = [point for point in points if not (metric == "output_throughput" and point.arrival_bound)]
    for told_apart in (False, True):
        ranks = rank_correlation(kept, metric, told_apart=told_apart)
        if ranks is not None:
            which = "those that runs tell apart" if told_apart else f"all, {ranks.ties} of them ties"
            name = f"{metric}: rank correlation (tau-b) of {ranks.pairs} pairs of settings, {which}"
            yield Row(name, ranks.tau_b, "", "bar, at least", TAU_BAR)
    all_, beyond = regrets(kept, metric), regrets(kept, metric, told_apart=True)
    name = f"{metric}: regret, median of {len(all_)} cells"
    yield Row(name, spread(all_).median, "", "bar, at most", REGRET_BAR)
    yield Row(f"{metric}: regret, worst", max(all_), "", "bar, at most", REGRET_BAR)
    yield Row(f"{metric}: regret that runs tell from none, worst", max(beyond), "", "bar, at most", REGRET_BAR)


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
