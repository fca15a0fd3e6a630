"""How much better one setting is than another, and whether the difference is more than noise."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglk_tuner.objective import Goal

Values = Mapping[str, float]
"""Value per goal's metric."""

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last one serves all larger samples,
# where it errs on the careful side.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class Gain:
    """Ratio of a setting to the default, above 1 = better, with its 95 % interval."""

    ratio: float | None
    """None where a value is 0 and no ratio exists."""
    low: float | None
    high: float | None
    pairs: int
    method: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Gains per goal, and the judgement over all goals together."""

    gains: dict[str, Gain]
    beyond_noise: bool | None
    """Whether the product of the gains lies above 1 with its whole interval; None = cannot be judged.

    Next to a value of 0 there is no ratio: a setting that was not better in every pair is then not beyond noise either.
    """


def compare(goals: Sequence[Goal], default: Sequence[Values], other: Sequence[Values]) -> Comparison:
    """Compare measurements of the default and another setting.

    Item 0 of both is the trial itself, which chose the setting and therefore flatters it; only later ones, each pair
    measured in one turn, give the ratio. One pair has no spread of its own: its interval is then as wide as the
    difference between the two measurements of one and the same setting, the larger of both settings.
    """
    gains = {goal.metric: _gain([goal], default, other) for goal in goals}
    together = _gain(goals, default, other)
    if together.low is not None:
        return Comparison(gains, together.low > 1.0)
    always_better = all(score > 0.0 for score in _scores(goals, default, other))
    return Comparison(gains, None if always_better else False)


def _gain(goals: Sequence[Goal], default: Sequence[Values], other: Sequence[Values]) -> Gain:
    pairs = len(default) - 1
    if pairs == 0:
        ratio = _exp(_score(goals, default[0], other[0]))
        return Gain(ratio, None, None, 0, "the two trials, not repeated")
    scores = _scores(goals, default, other)
    if not all(map(math.isfinite, scores)):
        return Gain(None, None, None, pairs, "no ratio: a value is 0")
    centre = statistics.fmean(scores)
    if pairs > 1:
        quantile = _T95[min(pairs - 1, len(_T95)) - 1]
        width = quantile * statistics.stdev(scores) / math.sqrt(pairs)
        method = "95 % interval of paired log ratios (Student's t)"
    else:
        width = max(abs(_score(goals, *default[:2])), abs(_score(goals, *other[:2])))
        method = "one pair; interval from the repeat of each setting"
    return Gain(_exp(centre), _exp(centre - width), _exp(centre + width), pairs, method)


def _scores(goals: Sequence[Goal], default: Sequence[Values], other: Sequence[Values]) -> list[float]:
    return [_score(goals, a, b) for a, b in zip(default[1:], other[1:], strict=True)]


def _score(goals: Sequence[Goal], base: Values, value: Values) -> float:
    """Return the logarithm of the product over goals of `value` to `base`, above 0 = `value` is better."""
    return sum(goal.loss(base[goal.metric], value[goal.metric]) for goal in goals)


def _exp(score: float) -> float | None:
    return math.exp(score) if math.isfinite(score) else None
