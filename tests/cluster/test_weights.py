"""Weights are ratios, changes are whole or nothing, and there is always a way back."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglk.cluster.smooth import SmoothWeighted, whole_ratios
from sglk.cluster.sticky import home_of
from sglk.cluster.weights import WeightHistory, checked
from sglk.errors import RequestError

SHARES = [
    {"a": 80, "b": 20},
    {"a": 8, "b": 2},
    {"a": 1, "b": 3},
    {"a": 60, "b": 60},
    {"a": 33, "b": 33, "c": 33},
    {"a": 0.8, "b": 0.2},
    {"a": 0.7, "b": 0.2, "c": 0.1},
    {"a": 30},
    {"a": 100, "b": 0},
]


@pytest.mark.parametrize("shares", SHARES)
def test_each_cycle_of_picks_is_exact(shares: dict[str, float]) -> None:
    smooth = SmoothWeighted(shares)
    for _ in range(3):
        counts = Counter(smooth.pick(shares) for _ in range(smooth.cycle))
        assert counts == {name: weight for name, weight in smooth.weights.items() if weight}


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), min_size=1).filter(lambda it: any(it.values())))
def test_each_cycle_is_exact_whatever_the_weights(weights: dict[str, int]) -> None:
    smooth = SmoothWeighted(weights)
    for _ in range(2):
        counts = Counter(smooth.pick(weights) for _ in range(smooth.cycle))
        assert counts == {name: weight for name, weight in smooth.weights.items() if weight}


@given(st.integers(1, 60), st.integers(0, 60))
def test_of_two_names_none_is_ever_more_than_one_pick_from_its_share(first: int, second: int) -> None:
    smooth, counts = SmoothWeighted({"a": first, "b": second}), Counter[str | None]()
    for done in range(1, 2 * smooth.cycle + 1):
        counts[smooth.pick("ab")] += 1
        assert abs(counts["a"] - done * first / (first + second)) <= 1


def test_a_zero_has_no_sign() -> None:
    assert str(checked({"a": -0.0, "b": 1}, "ab")) == "{'a': 0.0, 'b': 1.0}"


def test_ratios_do_not_depend_on_their_sum() -> None:
    assert whole_ratios({"a": 80, "b": 20}) == whole_ratios({"a": 0.8, "b": 0.2}) == {"a": 4, "b": 1}


def test_what_is_not_eligible_is_not_picked_and_leaves_the_others_in_ratio() -> None:
    smooth = SmoothWeighted({"a": 5, "b": 3, "c": 1})
    assert Counter(smooth.pick(("b", "c")) for _ in range(8)) == {"b": 6, "c": 2}
    assert smooth.pick(()) is None


def test_sessions_follow_the_weights_and_move_only_where_they_must() -> None:
    sessions = [f"session {index}" for index in range(4000)]
    before = {each: home_of(each, {"a": 80, "b": 20}, ("a", "b")) for each in sessions}
    after = {each: home_of(each, {"a": 70, "b": 30}, ("a", "b")) for each in sessions}
    assert abs(Counter(before.values())["b"] / len(sessions) - 0.2) < 0.03
    moved = [each for each in sessions if before[each] != after[each]]
    assert abs(len(moved) / len(sessions) - 0.1) < 0.03
    assert {after[each] for each in moved} == {"b"}


def test_sessions_of_a_group_that_goes_are_spread_and_the_others_stay() -> None:
    weights = {"a": 50.0, "b": 25.0, "c": 25.0}
    sessions = [f"session {index}" for index in range(2000)]
    before = {each: home_of(each, weights, weights) for each in sessions}
    after = {each: home_of(each, weights, ("a", "c")) for each in sessions}
    assert all(after[each] == before[each] for each in sessions if before[each] != "b")
    assert {after[each] for each in sessions if before[each] == "b"} == {"a", "c"}


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"a": 0, "b": 0}, "all weights would be 0"),
        ({"a": -1}, "weight -1 of device group 'a'"),
        ({"a": float("nan")}, "weight nan of device group 'a'"),
        ({"a": True}, "weight True of device group 'a'"),
        ({"a": "80"}, "weight '80' of device group 'a'"),
        ({"aa": 3}, "no device group is named 'aa'"),
    ],
)
def test_a_bad_change_is_refused_and_changes_nothing(shares: dict[str, float], told: str) -> None:
    history = WeightHistory({"a": 80, "b": 20})
    with pytest.raises(RequestError, match=told):
        history.change(shares, "admin")
    assert history.current.shares == {"a": 80, "b": 20}
    assert len(history.entries()) == 1


def test_a_change_of_some_keeps_the_others() -> None:
    history = WeightHistory({"a": 80, "b": 20})
    assert history.change({"b": 40}, "admin").shares == {"a": 80, "b": 40}


def test_rollback_undoes_change_after_change() -> None:
    history = WeightHistory({"a": 100, "b": 0})
    history.change({"a": 90, "b": 10}, "admin")
    history.change({"a": 50, "b": 50}, "admin")
    assert history.rollback().shares == {"a": 90, "b": 10}
    assert history.rollback().shares == {"a": 100, "b": 0}
    with pytest.raises(RequestError, match="no earlier weights"):
        history.rollback()
    assert [entry.source for entry in history.entries()] == ["start", "admin", "admin", "rollback", "rollback"]


def test_rollback_of_a_ramp_returns_to_before_its_first_step() -> None:
    history = WeightHistory({"a": 100, "b": 0})
    start = history.change({"a": 95, "b": 5}, "admin").number
    for share in (10, 20, 30):
        history.change({"a": 100 - share, "b": share}, "ramp", step_of=start)
    assert history.rollback().shares == {"a": 95, "b": 5}


def test_weights_of_the_start_are_checked_whole() -> None:
    with pytest.raises(RequestError, match="all weights would be 0"):
        checked({"a": 0}, ("a",))
