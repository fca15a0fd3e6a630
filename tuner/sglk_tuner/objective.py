"""What a study is after: goals over the summary figures of a bench record."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from sglk.config.tune_schema import TuneConfig
from sglk.errors import nearest

Direction = Literal["maximize", "minimize"]


class NoValue(Exception):
    """A measurement has no usable figure for a goal; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure and the way it should go."""

    metric: str
    """Name of a summary figure of a bench record."""
    direction: Direction

    def __str__(self) -> str:
        return f"{self.direction}:{self.metric}"

    def loss(self, value: float, best: float) -> float:
        """Return how far `value` lies behind `best`, as the logarithm of their ratio: 0 = equal, above 0 = worse.

        Where one of them is 0 it is infinite, and its sign says which is the better one.
        """
        if value == best:
            return 0.0
        larger, smaller = (best, value) if self.direction == "maximize" else (value, best)
        if larger <= 0.0 or smaller <= 0.0:
            return math.copysign(math.inf, larger - smaller)
        return math.log(larger / smaller)

    def best(self, values: list[float]) -> float:
        """Return the best of `values`."""
        return max(values) if self.direction == "maximize" else min(values)


def goals_of(config: TuneConfig) -> tuple[Goal, ...]:
    """Return the study's goals, which `compose` has checked."""
    pairs = (text.partition(":") for text in config.objective.goals)
    return tuple(Goal(metric, cast(Direction, direction)) for direction, _, metric in pairs)


def values_of(goals: tuple[Goal, ...], figures: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the goals' values from a record's summary figures; raises NoValue rather than make up a number."""
    return tuple(_value(goal, figures) for goal in goals)


def _value(goal: Goal, figures: Mapping[str, Any]) -> float:
    value = figures.get(goal.metric)
    if value is None:
        known = sorted(name for name, figure in figures.items() if isinstance(figure, (int, float)))
        cause = "" if goal.metric in figures else f"{nearest(goal.metric, known)}; it has {', '.join(known)}"
        raise NoValue(f"the measurement has no {goal.metric!r}{cause}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NoValue(f"{goal.metric!r} is {value!r}, which is no number")
    if not math.isfinite(value):
        raise NoValue(f"{goal.metric!r} is {value}, which cannot be compared")
    return float(value)
