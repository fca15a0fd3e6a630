"""How far predictions are from measurements: errors, ranks, and what a choice by them would have cost.

Settings are compared by the ratios of runs that stand side by side in one pass, so that a machine which is slower by
the next pass makes no difference between them.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from sglk.bench.metrics import percentile

METRICS = ("output_throughput", "tpot_s_p50", "ttft_s_p50", "ttft_s_p99")
HIGHER_IS_BETTER = ("output_throughput",)

NO_DIFFERENCE = 0.01
"""Settings that are closer than this are as good as one another."""

_SURE = 0.9
"""How sure it has to be that the true median lies within an interval; five passes in one order are 0.94."""

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Point:
    """One setting in one cell, measured several times."""

    model: str
    cell: str
    setting: str
    arrival_bound: bool
    """Whether requests came more slowly than they can be served, which fixes how many tokens a second come out."""
    saturated: bool
    """Whether they queued up: the latency of the last ones then says how long the run was, and little else."""
    runs: Sequence[Figures]
    """One of each pass, in which the other settings of the cell were measured too."""
    predictions: Sequence[Figures]
    """By each calibration."""
    paced_predictions: Sequence[Figures] = ()
    """By each calibration, were all as much slower as the machine was beside the runs."""
    paces: Sequence[float] = ()
    """How many times as long as in the calibrations steps took beside each of the runs."""

    def measured(self, metric: str) -> float | None:
        """Return the median of the runs; None where one has no figure."""
        return _median(self.runs, metric)

    def predicted(self, metric: str) -> float | None:
        """Return the median of the predictions; None where one has no figure."""
        return _median(self.predictions, metric)

    def error(self, metric: str, *, at_pace: bool = False) -> float | None:
        """Return the relative error of the prediction, or of that at the machine's pace; None without a figure."""
        predicted = _median(self.paced_predictions if at_pace else self.predictions, metric)
        measured = self.measured(metric)
        return None if not measured or predicted is None else abs(predicted - measured) / measured

    def noise(self, metric: str) -> list[float]:
        """Return how far each run is from the median, as a share of it."""
        return _distances(self.runs, metric)

    def drift(self, metric: str) -> list[float]:
        """Return how far each prediction is from the median, as a share of it."""
        return _distances(self.predictions, metric)


@dataclass(frozen=True)
class Spread:
    """How errors are spread."""

    count: int
    median: float
    p90: float


@dataclass(frozen=True)
class Ranks:
    """How far the order of predictions is that of measurements."""

    tau_b: float
    pairs: int
    ties: int
    """Pairs that the measurements do not tell apart."""


def spread(errors: Sequence[float]) -> Spread:
    """Return median and 90th percentile of at least one error."""
    return Spread(len(errors), statistics.median(errors), percentile(errors, 90))


def middle(several: Sequence[Figures]) -> Figures:
    """Return the median of each figure; None where one is missing."""
    return {metric: _median(several, metric) for metric in METRICS}


def errors(points: Sequence[Point], metric: str, *, at_pace: bool = False) -> list[float]:
    """Return the errors of one metric; `at_pace` are those of what is predicted at the machine's pace."""
    return [error for point in points if (error := point.error(metric, at_pace=at_pace)) is not None]


def paired_noise(points: Sequence[Point], metric: str) -> list[float]:
    """Return how far each run is from the median of its setting where both are taken as shares of their pass."""
    return [
        abs(each / level - 1)
        for cell in _cells(points, metric)
        for shares in _shares([point.runs for point in cell], metric)
        for level in [statistics.median(shares)]
        for each in shares
    ]


def order(one: Point, other: Point, metric: str) -> int:
    """Return 1 or -1 where the first or the second has the higher figure, 0 where runs do not tell them apart.

    That is where the interval of the median ratio, which passes at once give without any assumption about their
    distribution, holds 1, or where the median is nearer to it than NO_DIFFERENCE.
    """
    ratios = sorted(_ratios(one.runs, other.runs, metric))
    low, high = interval(ratios)
    return 0 if low <= 1 <= high else _sign(statistics.median(ratios))


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the shortest interval between two of these values that holds their true median by _SURE.

    By the binomial distribution of how many values lie below it; the whole span where there are too few for that.
    """
    count, below, place = len(ordered), 0.0, 0
    while True:
        below += math.comb(count, place) / 2**count
        if 1 - 2 * below < _SURE:
            break
        place += 1
    first = max(0, place - 1)
    return ordered[first], ordered[count - 1 - first]


def rank_correlation(points: Sequence[Point], metric: str, *, told_apart: bool = False) -> Ranks | None:
    """Return Kendall's tau-b over the pairs of settings of each cell; None for no pairs.

    Agreeing pairs less contrary ones, over the geometric mean of those that measurements tell apart and those that
    predictions do. With `told_apart` pairs that the measurements do not tell apart are left out.
    """
    pairs = list(_orders(points, metric))
    ties = sum(not measured for measured, _ in pairs)
    kept = [pair for pair in pairs if pair[0] or not told_apart]
    apart = math.prod(sum(pair[side] != 0 for pair in kept) for side in (0, 1))
    if not apart:
        return None
    return Ranks(sum(measured * predicted for measured, predicted in kept) / math.sqrt(apart), len(kept), ties)


def regrets(points: Sequence[Point], metric: str, *, told_apart: bool = False) -> list[float]:
    """Return, for each cell, how much worse the setting that is predicted to be best is than the best measured one.

    Predictions are compared within each calibration too; of those that are alike the first is chosen. With `told_apart`
    there is no regret where measurements do not tell the two apart.
    """
    found, sign = [], -1 if metric in HIGHER_IS_BETTER else 1
    for cell in _cells(points, metric):
        chosen, best = (
            cell[_first_least([sign * statistics.median(shares) for shares in _shares(figures, metric)])]
            for figures in ([point.predictions for point in cell], [point.runs for point in cell])
        )
        even = chosen is best or (told_apart and not order(best, chosen, metric))
        lost = statistics.median(_ratios(chosen.runs, best.runs, metric)) - 1
        found.append(0.0 if even else max(0.0, sign * lost))
    return found


def _orders(points: Sequence[Point], metric: str) -> Iterator[tuple[int, int]]:
    """Yield the measured and the predicted order of each pair."""
    for cell in _cells(points, metric):
        for one, other in combinations(cell, 2):
            predicted = statistics.median(_ratios(one.predictions, other.predictions, metric))
            yield order(one, other, metric), _sign(predicted)


def _sign(ratio: float) -> int:
    return 0 if abs(ratio - 1) < NO_DIFFERENCE else 1 if ratio > 1 else -1


def _ratios(these: Sequence[Figures], those: Sequence[Figures], metric: str) -> list[float]:
    pairs = zip(these, those, strict=True)
    return [(one[metric] or 0.0) / (other[metric] or math.inf) for one, other in pairs]


def _first_least(levels: Sequence[float]) -> int:
    return levels.index(min(levels))


def _shares(figures: Sequence[Sequence[Figures]], metric: str) -> list[list[float]]:
    """Return, for each setting, its figures as shares of the geometric mean of each pass or calibration."""
    passes = list(zip(*([run[metric] or 0.0 for run in runs] for runs in figures), strict=True))
    means = [statistics.geometric_mean(each) for each in passes]
    return [[each[place] / mean for each, mean in zip(passes, means, strict=True)] for place in range(len(figures))]


def _cells(points: Sequence[Point], metric: str) -> list[list[Point]]:
    """Return the cells in which there is something to compare, with the points that have figures."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point.measured(metric) and point.predicted(metric):
            found.setdefault((point.model, point.cell), []).append(point)
    return [cell for cell in found.values() if len(cell) > 1]


def _median(runs: Sequence[Figures], metric: str) -> float | None:
    found = [run[metric] for run in runs]
    known = [value for value in found if value]
    return statistics.median(known) if len(known) == len(found) else None


def _distances(runs: Sequence[Figures], metric: str) -> list[float]:
    median = _median(runs, metric)
    return [] if not median else [abs((run[metric] or 0.0) - median) / median for run in runs]
