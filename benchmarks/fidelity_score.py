"""How far predictions are from measurements: errors, ranks, and what a choice by them would have cost."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from sglk.bench.metrics import percentile

METRICS = ("output_throughput", "tpot_s_p50", "ttft_s_p50", "ttft_s_p99")
HIGHER_IS_BETTER = ("output_throughput",)

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Point:
    """One setting in one cell, measured several times."""

    model: str
    cell: str
    setting: str
    saturated: bool
    runs: Sequence[Figures]
    """Of one setting each has been measured in the same rounds as those of the other settings of its cell."""
    predictions: Sequence[Figures]
    """By the calibration of each round."""

    def measured(self, metric: str) -> float | None:
        """Return the median of the runs; None where one has no figure."""
        return _median(self.runs, metric)

    def predicted(self, metric: str) -> float | None:
        """Return the median of the predictions; None where one has no figure."""
        return _median(self.predictions, metric)

    def error(self, metric: str) -> float | None:
        """Return the relative error of the prediction; None where there is no figure."""
        measured, predicted = self.measured(metric), self.predicted(metric)
        return None if not measured or predicted is None else abs(predicted - measured) / measured

    def noise(self, metric: str) -> list[float]:
        """Return how far each run is from the median, as a share of it."""
        return _distances(self.runs, metric)

    def drift(self, metric: str) -> list[float]:
        """Return how far each prediction is from the median, as a share of it."""
        return _distances(self.predictions, metric)


def _median(runs: Sequence[Figures], metric: str) -> float | None:
    found = [run[metric] for run in runs]
    known = [value for value in found if value]
    return statistics.median(known) if len(known) == len(found) else None


def _distances(runs: Sequence[Figures], metric: str) -> list[float]:
    median = _median(runs, metric)
    return [] if not median else [abs((run[metric] or 0.0) - median) / median for run in runs]


@dataclass(frozen=True)
class Spread:
    """How errors are spread."""

    count: int
    median: float
    p90: float


def spread(errors: Sequence[float]) -> Spread:
    """Return median and 90th percentile of at least one error."""
    return Spread(len(errors), statistics.median(errors), percentile(errors, 90))


def errors(points: Sequence[Point], metric: str, *, saturated: bool = True) -> list[float]:
    """Return the errors of one metric; without `saturated`, of the points below saturation."""
    kept = [point for point in points if saturated or not point.saturated]
    return [error for point in kept if (error := point.error(metric)) is not None]


def rank_correlation(points: Sequence[Point], metric: str, *, told_apart: bool = False) -> tuple[float, int] | None:
    """Return Kendall's tau over the pairs of settings of each cell, and how many pairs there are; None for none.

    Agreeing pairs less contrary ones, of all pairs; with `told_apart`, of those in which the same setting was ahead in
    every run. The others differ by less than two runs of the same setting do: they have no order that one could miss.
    """
    signs = list(_signs(points, metric, told_apart))
    return (sum(signs) / len(signs), len(signs)) if signs else None


def regrets(points: Sequence[Point], metric: str, *, told_apart: bool = False) -> list[float]:
    """Return, for each cell, how much worse the setting that is predicted to be best is than the best measured one.

    Of settings that are predicted alike the first is chosen. With `told_apart` there is no regret where the choice was
    ahead in one run at least.
    """
    found = []
    for cell in _cells(points):
        known = [point for point in cell if point.measured(metric) and point.predicted(metric) is not None]
        if len(known) < 2:
            continue
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        chosen = min(known, key=lambda point: sign * (point.predicted(metric) or 0.0))
        best = min(known, key=lambda point: sign * (point.measured(metric) or 0.0))
        even = told_apart and not _ahead(best, chosen, metric)
        lost = (chosen.measured(metric) or 0.0) - (best.measured(metric) or 0.0)
        found.append(0.0 if even else abs(lost) / abs(best.measured(metric) or 1.0))
    return found


def _signs(points: Sequence[Point], metric: str, told_apart: bool) -> Iterator[int]:
    for cell in _cells(points):
        for one, other in combinations(cell, 2):
            measured = _difference(one.measured(metric), other.measured(metric))
            predicted = _difference(one.predicted(metric), other.predicted(metric))
            if measured is None or predicted is None or not measured:
                continue
            if told_apart and not _ahead(one, other, metric):
                continue
            yield (1 if measured * predicted > 0 else -1 if measured * predicted < 0 else 0)


def _ahead(one: Point, other: Point, metric: str) -> int:
    """Return 1 or -1 where the first or the second had the higher figure in every run, else 0."""
    signs = {_sign(_difference(mine[metric], its[metric])) for mine, its in zip(one.runs, other.runs, strict=True)}
    return signs.pop() if len(signs) == 1 else 0


def _sign(value: float | None) -> int:
    return 0 if not value else 1 if value > 0 else -1


def _difference(one: float | None, other: float | None) -> float | None:
    return None if not one or not other else one - other


def _cells(points: Sequence[Point]) -> list[list[Point]]:
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        found.setdefault((point.model, point.cell), []).append(point)
    return list(found.values())
