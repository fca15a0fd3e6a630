import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglk_tuner.choice import pareto_front, ranking, rule_of
from sglk_tuner.objective import Goal, NoValue, values_of
from sglk_tuner.summary import TrialSummary

from tests.tuner.studies import FASTER, MEMORY, SOONER, WINDOW, trial

DEFAULT = {WINDOW: 16, MEMORY: 0.5}


def numbers(trials: list[TrialSummary]) -> list[int | None]:
    return [one.number for one in trials]


def test_the_best_value_comes_first_in_either_direction() -> None:
    trials = [trial(0, DEFAULT, x=10.0), trial(1, {WINDOW: 4, MEMORY: 0.5}, x=20.0)]
    assert numbers(ranking([Goal("x", "maximize")], trials, DEFAULT)) == [1, 0]
    assert numbers(ranking([Goal("x", "minimize")], trials, DEFAULT)) == [0, 1]


def test_among_equals_the_default_wins_then_the_smaller_setting() -> None:
    trials = [
        trial(0, {WINDOW: 8, MEMORY: 0.8}, output_throughput=100.0),
        trial(1, {WINDOW: 8, MEMORY: 0.6}, output_throughput=99.5),
        trial(2, {WINDOW: 4, MEMORY: 0.6}, output_throughput=99.4),
        trial(3, DEFAULT, output_throughput=99.2),
        trial(4, {WINDOW: 2, MEMORY: 0.1}, output_throughput=98.0),
    ]
    assert numbers(ranking([FASTER], trials, DEFAULT)) == [3, 2, 1, 0, 4]


def test_one_complete_trial_is_the_choice_and_none_is_none() -> None:
    failed = trial(1, {WINDOW: 4, MEMORY: 0.5}, state="FAIL")
    assert numbers(ranking([FASTER], [failed, trial(2, DEFAULT, output_throughput=1.0)], DEFAULT)) == [2]
    assert ranking([FASTER], [failed], DEFAULT) == []


def test_the_front_holds_what_nothing_beats() -> None:
    trials = [
        trial(0, DEFAULT, output_throughput=100.0, ttft_s_p99=1.0),
        trial(1, {WINDOW: 4}, output_throughput=200.0, ttft_s_p99=2.0),
        trial(2, {WINDOW: 8}, output_throughput=90.0, ttft_s_p99=1.0),
        trial(3, {WINDOW: 2}, output_throughput=150.0, ttft_s_p99=1.2),
    ]
    goals = [FASTER, SOONER]
    assert numbers(pareto_front(goals, trials)) == [0, 1, 3]
    # Products of the ratios to the best values: 2.0, 2.0 and 1.6.
    assert numbers(ranking(goals, trials, DEFAULT)) == [3, 0, 1, 2]
    assert "Pareto front" in rule_of(goals)


def test_when_all_tie_the_front_is_everybody_and_the_default_is_chosen() -> None:
    trials = [trial(n, {WINDOW: n}, output_throughput=5.0, ttft_s_p99=0.0) for n in (1, 2, 3)]
    assert len(pareto_front([FASTER, SOONER], trials)) == 3
    assert ranking([FASTER, SOONER], trials, {WINDOW: 3})[0].params == {WINDOW: 3}


finite = st.floats(0.0, 1e6)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=6))
def test_the_choice_depends_on_nothing_but_the_trials(figures: list[tuple[float, float]]) -> None:
    trials = [trial(n, {WINDOW: n}, output_throughput=a, ttft_s_p99=b) for n, (a, b) in enumerate(figures)]
    goals = [FASTER, SOONER]
    orders = {
        tuple(numbers(ranking(goals, list(some), {WINDOW: 0})))
        for some in itertools.islice(itertools.permutations(trials), 24)
    }
    assert len(orders) == 1
    (order,) = orders
    assert sorted(number for number in order if number is not None) == list(range(len(trials)))
    assert order[0] in numbers(pareto_front(goals, trials))


@pytest.mark.parametrize("figures", [{}, {"output_throughput": None}, {"output_throughput": math.nan}])
def test_an_absent_figure_is_never_a_number(figures: dict[str, float | None]) -> None:
    with pytest.raises(NoValue, match="output_throughput"):
        values_of((FASTER,), figures)
