import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk_tuner.carried import settings_of
from sglk_tuner.proposals import CONTROL_EVERY, Proposals
from sglk_tuner.space import Params, point_key
from sglk_tuner.summary import TrialSummary, read_summary

from sglk.config.tune_schema import SearchConfig
from tests.reports.folders import study as study_folder
from tests.tuner.studies import CHUNK, FASTER, POLICY, WINDOW, space_of

SPACE = space_of({CHUNK: [512, 1024, 2048], WINDOW: [8, 16], POLICY: ["fcfs", "lpm"]})
INSIDE = {CHUNK: 512, WINDOW: 16, POLICY: "fcfs"}
OUTSIDE = {CHUNK: 256, WINDOW: 16, POLICY: "fcfs"}
DTYPE = "runtime.dtype"


def proposals(default: Params = INSIDE, sampler: str = "grid", n_trials: int | None = None, seed: int = 0) -> Proposals:
    return Proposals(SPACE, default, (FASTER,), SearchConfig("any", sampler, n_trials=n_trials, seed=seed))


def value_of(params: Params) -> float:
    return float(params[CHUNK] / 100 + params[WINDOW])


def run(source: Proposals, trials: list[TrialSummary], lost: set[int], stop: int | None = None) -> list[TrialSummary]:
    """Run a session that dies during trial number `stop`."""
    while (proposal := source.next(trials, lost, len(trials))) is not None:
        number = len(trials)
        state, values = (
            ("FAIL", {}) if number == stop else ("COMPLETE", {"output_throughput": value_of(proposal.params)})
        )
        trials = [*trials, TrialSummary(number, state, proposal.source, proposal.params, values=values)]
        if number == stop:
            lost.add(number)
            return trials
    return trials


def keys(trials: list[TrialSummary]) -> list[str]:
    return [point_key(trial.params) for trial in trials]


@pytest.mark.parametrize(("default", "count"), [(INSIDE, 12), (OUTSIDE, 13)])
def test_a_grid_measures_every_point_once_with_the_default_first(default: Params, count: int) -> None:
    trials = run(proposals(default), [], set())
    assert trials[0].params == default
    assert trials[0].source == "default"
    assert len(trials) == len(set(keys(trials))) == count
    assert {point_key(point) for point in SPACE.points} <= set(keys(trials))


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe"])
@settings(max_examples=8, deadline=None)
@given(stop=st.integers(0, 6))
def test_a_killed_study_measures_what_an_unbroken_one_does(sampler: str, stop: int) -> None:
    unbroken = run(proposals(sampler=sampler, n_trials=7), [], set())
    lost: set[int] = set()
    broken = run(proposals(sampler=sampler, n_trials=7), [], lost, stop)
    assert len(broken) == stop + 1
    resumed = run(proposals(sampler=sampler, n_trials=7), broken, lost)
    assert len(resumed) == 8
    assert keys(resumed)[:stop] + keys(resumed)[stop + 1 :] == keys(unbroken)


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_a_longer_budget_keeps_what_was_measured(sampler: str) -> None:
    short = run(proposals(sampler=sampler, n_trials=4), [], set())
    longer = run(proposals(sampler=sampler, n_trials=40), short, set())
    assert longer[:4] == short
    assert len(longer) == len(set(keys(longer))) == 12


def test_a_budget_beyond_the_space_is_noted() -> None:
    assert "12 settings are measured" in proposals(n_trials=40).notices[0]
    assert proposals(n_trials=12).notices == []


def test_tpe_carries_a_random_control_and_learns() -> None:
    trials = run(proposals(sampler="tpe", n_trials=12), [], set())
    controls = [trial.number for trial in trials if trial.source == "control"]
    assert controls == [n for n in range(1, 12) if n % CONTROL_EVERY == 0]
    assert {trial.source for trial in trials} == {"default", "tpe", "control"}


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe"])
def test_what_another_study_found_comes_first_as_near_as_the_space_allows(sampler: str) -> None:
    elsewhere: list[Params] = [
        {CHUNK: 4096, WINDOW: 64, POLICY: "lpm", "runtime.page_size": 128},
        {CHUNK: 1536, WINDOW: 8},
        dict(INSIDE),
        {CHUNK: 2048, WINDOW: 17, POLICY: "lpm"},
        {CHUNK: None, WINDOW: "many", POLICY: "lpm"},
    ]
    nearest = [{CHUNK: 2048, WINDOW: 16, POLICY: "lpm"}, {CHUNK: 1024, WINDOW: 8, POLICY: "fcfs"}]
    search = SearchConfig("any", sampler, n_trials=6)
    source = Proposals(SPACE, INSIDE, (FASTER,), search, elsewhere)
    trials = run(source, [], set())
    assert [trial.params for trial in trials[1:3]] == nearest
    assert {trial.source for trial in trials[1:3]} == {"carried"}
    assert len(set(keys(trials))) == 6
    lost: set[int] = set()
    broken = run(source, [], lost, 1)
    assert keys(run(source, broken, lost))[2:] == keys(trials)[1:]


def test_a_default_that_is_none_is_no_obstacle_to_what_was_found_elsewhere() -> None:
    tokens = "runtime.max_total_tokens"
    space = space_of({tokens: [512, 1024]})
    source = Proposals(space, {tokens: None}, (FASTER,), SearchConfig("any"), [{tokens: None}, {tokens: 1000}])
    assert source.carried == [{tokens: 1024}]


@pytest.mark.parametrize(
    ("found", "carried"), [({WINDOW: 24}, []), ({}, []), ({WINDOW: 20}, []), ({WINDOW: 17}, [16]), ({WINDOW: 16}, [16])]
)
def test_a_default_outside_the_candidates_is_nearest_to_itself(found: Params, carried: list[int]) -> None:
    source = Proposals(space_of({WINDOW: [16, 64]}), {WINDOW: 24}, (FASTER,), SearchConfig("any"), [found])
    assert [point[WINDOW] for point in source.carried] == carried


def test_no_more_is_carried_than_the_budget_has() -> None:
    elsewhere: list[Params] = [{**INSIDE, CHUNK: chunk} for chunk in (1024, 2048)]
    source = Proposals(SPACE, INSIDE, (FASTER,), SearchConfig("any", n_trials=2), elsewhere)
    assert source.carried == elsewhere[:1]
    assert Proposals(SPACE, INSIDE, (FASTER,), SearchConfig("any", n_trials=1), elsewhere).carried == []


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_what_was_found_elsewhere_comes_first_even_where_the_engine_restarts_for_it(sampler: str) -> None:
    space = space_of({WINDOW: list(range(1, 9)), DTYPE: ["fp32", "bf16"]})
    elsewhere: list[Params] = [{WINDOW: 3, DTYPE: "bf16"}, {WINDOW: 8, DTYPE: "fp32"}]
    source = Proposals(space, {DTYPE: "auto", WINDOW: 1}, (FASTER,), SearchConfig("any", sampler), elsewhere)
    points = source.waiting([], set())[1:]
    assert len(points) == 16
    assert points[:2] == elsewhere
    dtypes = [point[DTYPE] for point in points]
    assert dtypes[1:] == ["fp32"] * 8 + ["bf16"] * 7


def test_only_as_much_is_compared_as_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another study may have thousands of settings, and so may the space."""
    compared: list[Params] = []
    distance = Proposals._distance

    def counted(self: Proposals, point: Params, wanted: Params) -> float:
        compared.append(wanted)
        return distance(self, point, wanted)

    monkeypatch.setattr(Proposals, "_distance", counted)
    elsewhere = [point for point in SPACE.points if point != INSIDE]
    source = Proposals(SPACE, INSIDE, (FASTER,), SearchConfig("any"), elsewhere)
    assert source.carried == elsewhere[:3]
    assert len({point_key(wanted) for wanted in compared}) == 3


def test_a_setting_that_failed_when_measured_again_is_not_carried(tmp_path: Path) -> None:
    summary = read_summary(study_folder(tmp_path))
    best, second = (next(trial for trial in summary.trials if trial.rank == rank) for rank in (1, 2))
    summary.winner = second.number
    assert settings_of(summary)[1] == best.params
    summary.closing = {"unreliable": [best.number]}
    assert settings_of(summary)[0] == second.params
    assert best.params not in settings_of(summary)


def test_nothing_is_carried_from_a_study_whose_limits_no_setting_met(tmp_path: Path) -> None:
    summary = read_summary(study_folder(tmp_path))
    assert settings_of(summary) != []
    summary.winner = None
    assert settings_of(summary) == []


def test_tpe_searches_numbers_around_a_default_that_is_none() -> None:
    tokens = "runtime.max_total_tokens"
    space = space_of({tokens: list(range(512, 4608, 512))})
    source = Proposals(space, {tokens: None}, (FASTER,), SearchConfig("any", "tpe"))
    trials: list[TrialSummary] = []
    while (proposal := source.next(trials, set(), 0)) is not None:
        # The default is the best, so that it is suggested again and again.
        figures = {"output_throughput": 1e6 / (proposal.params[tokens] or 1)}
        trials.append(TrialSummary(len(trials), "COMPLETE", proposal.source, proposal.params, values=figures))
    assert sorted(trial.params[tokens] or 0 for trial in trials) == [0, *range(512, 4608, 512)]


def test_seeds_differ_and_repeat() -> None:
    def measured(seed: int) -> list[str]:
        return keys(run(proposals(sampler="random", n_trials=6, seed=seed), [], set()))

    assert measured(1) == measured(1)
    assert len({tuple(measured(seed)) for seed in range(5)}) > 1


def test_failed_points_count_and_come_back_only_when_asked() -> None:
    trials = [TrialSummary(0, "COMPLETE", "default", INSIDE, values={"output_throughput": 1.0})]
    trials.append(TrialSummary(1, "FAIL", "grid", {**INSIDE, WINDOW: 8}))
    assert proposals(n_trials=2).next(trials, set(), 2) is None
    asked = Proposals(SPACE, INSIDE, (FASTER,), SearchConfig("any", n_trials=2, retry_failed=True))
    again = asked.next(trials, set(), 2)
    assert again is not None
    assert again.params == trials[1].params
    failed_again = [*trials, TrialSummary(2, "FAIL", "retry", again.params)]
    assert asked.next(failed_again, set(), 2) is None


def test_random_points_are_grouped_by_what_restarts_the_engine() -> None:
    space = space_of({WINDOW: list(range(1, 9)), DTYPE: ["fp32", "bf16"]})
    default = {DTYPE: "auto", WINDOW: 1}
    source = Proposals(space, default, (FASTER,), SearchConfig("any", "random", n_trials=13))
    dtypes = [point[DTYPE] for point in source.waiting([], set())[1:]]
    assert len(dtypes) == 12
    changes = sum(one != other for one, other in itertools.pairwise(dtypes))
    assert changes <= 1
