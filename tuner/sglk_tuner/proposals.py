"""Which point to measure next: exact books over the finite space, so that a resumed study neither repeats nor skips.

The choice depends on the trials in the storage and on the seed alone. A study that is killed and resumed therefore
measures the same points as one that is not.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState, create_trial

from sglk.config.tune_schema import SearchConfig
from sglk_tuner.choice import complete
from sglk_tuner.distributions import distributions_of
from sglk_tuner.objective import Goal
from sglk_tuner.space import LIVE_KEYS, Params, Space, is_ordered, point_key
from sglk_tuner.summary import TrialSummary

DEFAULT_TRIALS = 20
CONTROL_EVERY = 4
"""With `tpe`, every fourth trial is drawn at random: a control that shows whether the model earns its keep."""

MOST_CARRIED = 3
"""Settings that a study takes over from another one: more would be that study over again."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to measure, and who asked for it (`TrialSummary.source`)."""

    params: Params
    source: str


class Proposals:
    """The points of one study in the order of measurement."""

    def __init__(
        self,
        space: Space,
        default: Params,
        goals: tuple[Goal, ...],
        search: SearchConfig,
        elsewhere: Sequence[Params] = (),
    ) -> None:
        """`elsewhere` are settings that did well in another study, best first; what is nearest to them comes first."""
        self.space = space
        self.default = default
        self._goals = goals
        self._search = search
        others = [point for point in space.points if point != default]
        self.total = len(others) + 1
        """Distinct possible settings, the default configuration among them."""
        asked = search.n_trials or (self.total if search.sampler == "grid" else DEFAULT_TRIALS)
        self.planned = min(asked, self.total)
        """How many of them the budget allows."""
        self.notices = (
            [f"search.n_trials={asked} is more than the space has; {self.total} settings are measured"]
            if asked > self.total and search.n_trials
            else []
        )
        # A grid that the budget cuts short is sampled: its first points would be one corner of the space.
        whole_grid = search.sampler == "grid" and self.planned == self.total
        queue = others if whole_grid else _shuffled(others, search.seed)
        self.carried = self._nearest(queue, elsewhere)
        self._queue = self.carried + [point for point in queue if point not in self.carried]

    def next(self, trials: list[TrialSummary], lost: set[int], first: int) -> Proposal | None:
        """Return what to measure after `trials`, or None when the budget is spent.

        `lost` holds trials whose point must run once more; `first` is the number of this session's first trial.
        """
        known = tried(trials, lost)
        if point_key(self.default) not in known:
            return Proposal(self.default, "default")
        for trial in trials:
            if trial.number in lost and self._complete_point(trial) and point_key(trial.params) not in known:
                return Proposal(trial.params, trial.source)
        if len(known) < self.planned:
            return self._fresh(list(known.values()), set(known))
        return self._retry(known.values(), first)

    def waiting(self, trials: list[TrialSummary], lost: set[int]) -> list[Params]:
        """Return the points of the budget that have still to run, as far as they are known in advance."""
        if self._search.sampler == "tpe":
            return []
        known = tried(trials, lost)
        return [point for point in (self.default, *self._ordered_budget()) if point_key(point) not in known]

    def _ordered_budget(self) -> list[Params]:
        """Return the points beside the default that grid and random will measure, restarts kept few."""
        slow = [key for key in self.space.candidates if key not in LIVE_KEYS]

        def engine(point: Params) -> str:
            return point_key({key: point[key] for key in slow})

        rest = self._queue[len(self.carried) : self.planned - 1]
        # On from the engine that ran last: what is carried comes first, restarts or not.
        groups = list(dict.fromkeys(map(engine, (*reversed(self.carried), *rest))))
        return self.carried + sorted(rest, key=lambda point: groups.index(engine(point)))

    def _fresh(self, known: list[TrialSummary], seen: set[str]) -> Proposal | None:
        if self._search.sampler != "tpe":
            left = [point for point in self._ordered_budget() if point_key(point) not in seen]
            return self._of_queue(left[0], self._search.sampler) if left else None
        left = [point for point in self._queue if point_key(point) not in seen]
        if left[0] in self.carried:
            return self._of_queue(left[0], "tpe")
        if len(known) % CONTROL_EVERY == 0:
            return Proposal(left[0], "control")
        suggestion = self._suggest(known)
        return Proposal(min(left, key=lambda point: self._distance(point, suggestion)), "tpe")

    def _of_queue(self, point: Params, source: str) -> Proposal:
        return Proposal(point, "carried" if point in self.carried else source)

    def _nearest(self, points: Sequence[Params], elsewhere: Sequence[Params]) -> list[Params]:
        """Return the points nearest to settings of another study, none twice: MOST_CARRIED, or what the budget has."""
        found: list[Params] = []
        most = min(MOST_CARRIED, self.planned - 1)
        for params in elsewhere:
            if len(found) == most:
                break
            wanted = {**self.default, **{key: value for key, value in params.items() if key in self.default}}
            # What the default is nearest to need not be carried: the default is measured anyway.
            nearest = min((self.default, *points), key=lambda point: self._nearness(point, wanted))
            if nearest != self.default and nearest not in found:
                found.append(nearest)
        return found

    def _suggest(self, known: list[TrialSummary]) -> Params:
        """Ask Optuna's TPE for a point, given all that was measured; a failed setting counts as the worst one seen."""
        startup = max(3, min(10, self.planned // 4))
        sampler = optuna.samplers.TPESampler(seed=_seed(self._search.seed, len(known)), n_startup_trials=startup)
        adviser = optuna.create_study(sampler=sampler, directions=[goal.direction for goal in self._goals])
        distributions = distributions_of(self.space.candidates, self.default)
        done = complete(known)
        worst = [-goal.best([-trial.values[goal.metric] for trial in done]) if done else 0.0 for goal in self._goals]
        for trial in known if done else []:
            values = [trial.values[goal.metric] for goal in self._goals] if trial.state == "COMPLETE" else worst
            adviser.add_trial(
                create_trial(state=TrialState.COMPLETE, values=values, params=trial.params, distributions=distributions)
            )
        return dict(adviser.ask(distributions).params)

    def _nearness(self, point: Params, wanted: Params) -> tuple[float, float]:
        """Return the distance, and how unlike the values are: a default may lie outside the candidates."""
        return self._distance(point, wanted), sum(_unlike(point[key], wanted[key]) for key in self.space.candidates)

    def _distance(self, point: Params, suggestion: Params) -> float:
        """Return how far a candidate lies from a suggestion, in steps of each knob's candidates."""
        return sum(self._steps(key, point[key], suggestion[key]) for key in self.space.candidates)

    def _steps(self, key: str, value: object, wanted: object) -> float:
        values = self.space.candidates[key]
        # The default, which is met on either side, may be null where every candidate is a number.
        if not is_ordered((*values, value, wanted)):
            return float(value != wanted)
        span = max(len(values) - 1, 1)
        place = _place(values, value)
        nearest_place = _place(values, wanted)
        return abs(place - nearest_place) / span

    def _retry(self, known: Iterable[TrialSummary], first: int) -> Proposal | None:
        if not self._search.retry_failed:
            return None
        failed = [t for t in known if t.state == "FAIL" and t.number is not None and t.number < first]
        return Proposal(failed[0].params, "retry") if failed else None

    def _complete_point(self, trial: TrialSummary) -> bool:
        """Tell whether a lost trial got as far as its parameters before its process died."""
        return trial.params.keys() == self.space.candidates.keys()


def tried(trials: list[TrialSummary], lost: set[int]) -> dict[str, TrialSummary]:
    """Return the points that have a result, each with its last trial."""
    ended = (trial for trial in trials if trial.number not in lost and trial.state not in ("RUNNING", "WAITING"))
    return {point_key(trial.params): trial for trial in ended if trial.params}


def _place(values: Sequence[Any], wanted: Any) -> int:
    """Return where in ascending `values` the one nearest to `wanted` stands."""
    return min(range(len(values)), key=lambda index: abs(values[index] - wanted))


def _unlike(value: Any, wanted: Any) -> float:
    if not is_ordered((value, wanted)):
        return float(value != wanted)
    return float(abs(value - wanted) / max(abs(value), abs(wanted), 1))


def _shuffled(points: list[Params], seed: int) -> list[Params]:
    return random.Random(seed).sample(points, len(points))


def _seed(seed: int, trial: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{trial}".encode()).digest()[:4], "big")
