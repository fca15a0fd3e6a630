"""Which of the measured settings is the one to keep: the Pareto front, the ranking and the rule behind both."""

import math
from collections.abc import Sequence

from sglk_tuner.objective import Goal
from sglk_tuner.space import Params
from sglk_tuner.summary import TrialSummary

TIE = 0.01
"""Settings whose loss differs by less than this share are equal: benchmarks do not repeat more exactly."""

MEMORY = "runtime.mem_fraction_static"
WINDOW = "runtime.max_running_requests"

GOODPUT = "goodput"
"""The figure that counts the requests within the objective's limits."""


def rule_of(goals: Sequence[Goal]) -> str:
    """Return the rule of `ranking` in words."""
    ties = (
        f"settings within {TIE:.0%} count as equal; among equals the default configuration wins, then the smaller "
        "mem_fraction_static, then the smaller max_running_requests, then the earlier trial"
    )
    if len(goals) == 1:
        return f"best {goals[0].metric} ({goals[0].direction}); {ties}"
    names = " and ".join(map(str, goals))
    return f"on the Pareto front of {names}, the smallest product of the ratios to the best value of each goal; {ties}"


def complete(trials: Sequence[TrialSummary]) -> list[TrialSummary]:
    """Return the trials that have values."""
    return [trial for trial in trials if trial.state == "COMPLETE"]


def unmet_goal(goals: Sequence[Goal], trials: Sequence[TrialSummary]) -> Goal | None:
    """Return the goal for which no request of any complete trial kept the limits: 0 everywhere ranks nothing."""
    done = complete(trials)
    counting = (goal for goal in goals if goal.metric == GOODPUT)
    return next((goal for goal in counting if done and not any(trial.values[goal.metric] for trial in done)), None)


def pareto_front(goals: Sequence[Goal], trials: Sequence[TrialSummary]) -> list[TrialSummary]:
    """Return the complete trials that no other one beats in a goal without losing in another."""
    done = complete(trials)
    return [trial for trial in done if not any(_dominates(goals, other, trial) for other in done)]


def ranking(goals: Sequence[Goal], trials: Sequence[TrialSummary], default: Params) -> list[TrialSummary]:
    """Return the complete trials, the one to keep first.

    The order depends on values, settings and trial numbers alone, so it is the same on every run.
    """
    done = complete(trials)
    if not done:
        return []
    front = pareto_front(goals, done) if len(goals) > 1 else done
    losses = {id(trial): _loss(goals, trial, done) for trial in done}
    limit = min(losses[id(trial)] for trial in front) + math.log1p(TIE)
    ties = [trial for trial in front if losses[id(trial)] <= limit]
    tied, fronted = set(map(id, ties)), set(map(id, front))
    rest = [trial for trial in done if id(trial) not in tied]
    ties.sort(key=lambda trial: _modesty(trial, default))
    rest.sort(key=lambda trial: (id(trial) not in fronted, losses[id(trial)], trial.number))
    return ties + rest


def _modesty(trial: TrialSummary, default: Params) -> tuple[bool, float, float, int]:
    assert trial.number is not None
    memory = trial.params.get(MEMORY) or 0.0
    window = trial.params.get(WINDOW) or 0.0
    return trial.params != default, memory, window, trial.number


def _loss(goals: Sequence[Goal], trial: TrialSummary, done: list[TrialSummary]) -> float:
    return sum(
        goal.loss(trial.values[goal.metric], goal.best([other.values[goal.metric] for other in done])) for goal in goals
    )


def _dominates(goals: Sequence[Goal], one: TrialSummary, other: TrialSummary) -> bool:
    signs = [1 if goal.direction == "maximize" else -1 for goal in goals]
    pairs = [
        (sign * one.values[goal.metric], sign * other.values[goal.metric])
        for sign, goal in zip(signs, goals, strict=True)
    ]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
