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
    """One setting in one cell."""

    model: str
    cell: str
    setting: str
    saturated: bool
    measured: Figures
    predicted: Figures

    def error(self, metric: str) -> float | None:
        """Return the relative error of the prediction; None where there is no figure."""
        measured, predicted = self.measured[metric], self.predicted[metric]
        return None if not measured or predicted is None else abs(predicted - measured) / measured


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


def rank_correlation(points: Sequence[Point], metric: str, tie: float = 0.0) -> float | None:
    """Return Kendall's tau over the pairs of settings of each cell: agreeing less contrary pairs, of all pairs.

    Pairs whose measurements differ by no more than the share `tie` count in neither; None when none is left.
    """
    signs = list(_signs(points, metric, tie))
    return sum(signs) / len(signs) if signs else None


def regrets(points: Sequence[Point], metric: str) -> list[float]:
    """Return, for each cell, how much worse the setting that is predicted to be best is than the best measured one."""
    found = []
    for cell in _cells(points):
        known = [point for point in cell if point.measured[metric] and point.predicted[metric] is not None]
        if len(known) < 2:
            continue
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        chosen = min(known, key=lambda point: sign * (point.predicted[metric] or 0.0))
        best = min(sign * (point.measured[metric] or 0.0) for point in known)
        found.append(abs(sign * (chosen.measured[metric] or 0.0) - best) / abs(best))
    return found


def _signs(points: Sequence[Point], metric: str, tie: float) -> Iterator[int]:
    for cell in _cells(points):
        for one, other in combinations(cell, 2):
            measured = _difference(one.measured[metric], other.measured[metric])
            predicted = _difference(one.predicted[metric], other.predicted[metric])
            if measured is None or predicted is None or abs(measured) <= tie:
                continue
            yield (1 if measured * predicted > 0 else -1 if measured * predicted < 0 else 0)


def _difference(one: float | None, other: float | None) -> float | None:
    """Return by what share of the smaller one they differ."""
    return None if not one or not other else (one - other) / min(one, other)


def _cells(points: Sequence[Point]) -> list[list[Point]]:
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        found.setdefault((point.model, point.cell), []).append(point)
    return list(found.values())
