"""What a study is after: goals over the summary figures of a bench record."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from sglk.bench.metrics import summarise
from sglk.config.schema import SloConfig, TuneConfig
from sglk.errors import ConfigError, nearest

Direction = Literal["maximize", "minimize"]
DIRECTIONS = get_args(Direction)

FIGURES = tuple(summarise([], SloConfig()))
"""What a goal can name: the figures of every benchmark summary."""


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
        """Return how far `value` lies behind `best`, as the logarithm of their ratio: 0 = equal, above 0 = worse."""
        if value == best:
            return 0.0
        if value <= 0.0 or best <= 0.0:
            return math.inf
        ratio = best / value if self.direction == "maximize" else value / best
        return math.log(ratio)

    def best(self, values: list[float]) -> float:
        """Return the best of `values`."""
        return max(values) if self.direction == "maximize" else min(values)


def parse_goal(text: str) -> Goal:
    """Read `maximize:METRIC` or `minimize:METRIC`."""
    direction, colon, metric = text.partition(":")
    if not colon or not metric or direction not in DIRECTIONS:
        hint = nearest(direction, DIRECTIONS) if colon else ""
        raise ConfigError(
            f"objective.goals: {text!r} is not a goal{hint}; write 'maximize:METRIC' or 'minimize:METRIC', "
            "such as 'maximize:output_throughput'"
        )
    return Goal(metric, cast(Direction, direction))


def goals_of(config: TuneConfig) -> tuple[Goal, ...]:
    """Return the study's goals; refuses none, the same figure twice, and a pruner beside several goals."""
    goals = tuple(parse_goal(text) for text in config.objective.goals)
    if not goals:
        raise ConfigError("objective.goals is empty; give one or more, such as objective.goals=[maximize:goodput]")
    for goal in goals:
        if goal.metric not in FIGURES:
            raise ConfigError(
                f"objective.goals: {goal.metric!r} is no figure of a benchmark{nearest(goal.metric, FIGURES)}; "
                f"choose one of {', '.join(FIGURES)}"
            )
    metrics = [goal.metric for goal in goals]
    if len(set(metrics)) < len(metrics):
        raise ConfigError(f"objective.goals names one figure twice: {', '.join(map(str, goals))}; keep one of them")
    if len(goals) > 1 and config.search.pruner != "none":
        raise ConfigError(
            f"search.pruner={config.search.pruner} needs a single goal, but objective.goals has {len(goals)}; "
            "set search.pruner=none or keep one goal"
        )
    return goals


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
