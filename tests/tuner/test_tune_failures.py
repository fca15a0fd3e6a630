"""Settings that fail, and what a study makes of them."""

import json

import pytest

from tests.tuner.lab import FAST, Lab
from tests.tuner.spaces import DEFAULT_WINDOW, DTYPE, TWELVE, WINDOW


def test_engine_failures_are_failed_trials_and_the_rest_runs(lab: Lab) -> None:
    lab.script(
        {"when": {"max_running_requests": 2}, "do": "exit"},
        {"when": {"max_running_requests": 3}, "do": "kill"},
        {"when": {"max_running_requests": 4}, "do": "hang"},
        {"when": {"max_running_requests": 5}, "do": "refuse"},
        {"when": {"max_running_requests": 1}, "do": "refuse_setting"},
    )
    assert lab.tune({WINDOW: [1, 2, 3, 4, 5, 7]}, "study.trial_timeout_s=6") == 0
    failed = {trial["params"][WINDOW]: trial for trial in lab.trials("FAIL")}
    assert sorted(failed) == [1, 2, 3, 4, 5]
    assert "exited with code 3: RuntimeError: device out of memory" in failed[2]["reason"]
    assert "killed by SIGKILL: it printed nothing after it was ready" in failed[3]["reason"]
    assert "study.trial_timeout_s=6" in failed[4]["reason"]
    assert "2 of 2 requests failed" in failed[5]["reason"]
    assert "overloaded" in failed[5]["reason"]
    assert "the KV pool does not fit" in failed[1]["reason"]
    for trial in failed.values():
        assert (lab.study / trial["log"]).is_file()
        assert trial["values"] == {}
    assert {trial["params"][WINDOW] for trial in lab.trials("COMPLETE")} == {7, DEFAULT_WINDOW}
    # A refused change leaves the server as it was; every other failure costs a new one.
    assert len(lab.events("start")) == 5
    assert lab.engine_pids() == set()


@pytest.mark.slow
def test_a_failed_start_is_a_failed_trial(lab: Lab) -> None:
    lab.script({"when": {"dtype": "bf16"}, "do": "start_exit"})
    assert lab.tune({DTYPE: ["bf16", "fp32"]}) == 0
    (failed,) = lab.trials("FAIL")
    assert "CapacityError: not enough memory" in failed["reason"]
    assert "CapacityError" in (lab.study / failed["log"]).read_text()


@pytest.mark.slow
def test_a_server_that_never_starts_ends_the_study_early(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": {}, "do": "start_exit"})
    assert lab.tune(TWELVE) == 1
    assert "did not start for 3 settings in a row" in capsys.readouterr().err
    assert len(lab.events("start")) == 3
    lab.script()
    assert lab.tune(TWELVE, "search.retry_failed=true") == 0
    assert len(lab.trials("COMPLETE")) == 12


@pytest.mark.slow
def test_failed_points_run_again_only_when_asked(lab: Lab) -> None:
    space = {WINDOW: [4, 8]}
    lab.script({"when": {"max_running_requests": 4}, "do": "refuse"})
    assert lab.tune(space) == 0
    lab.script()
    assert lab.tune(space) == 0
    assert len(lab.trials("FAIL")) == 1
    assert len(lab.summary["trials"]) == 3
    assert lab.tune(space, "search.retry_failed=true") == 0
    again = lab.summary["trials"][3]
    assert (again["params"], again["state"], again["source"]) == ({WINDOW: 4}, "COMPLETE", "retry")


def test_without_any_result_there_is_no_profile(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": {}, "do": "refuse"})
    assert lab.tune({WINDOW: [4]}) == 1
    assert "no setting of study 's' completed" in capsys.readouterr().err
    assert not lab.profile.exists()
    assert len(lab.trials("FAIL")) == 2
    assert lab.summary["status"] == "failed"
    assert lab.engine_pids() == set()


def test_a_missing_figure_fails_the_trial_with_its_name(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": {"max_running_requests": 4}, "tokens": 1})
    assert lab.tune({WINDOW: [4]}, "objective.goals=[minimize:tpot_s_p50]") == 0
    (failed,) = lab.trials("FAIL")
    assert "'tpot_s_p50'" in failed["reason"]
    assert json.loads((lab.study / failed["record"]).read_text())["summary"]["tpot_s_p50"] is None


def test_a_setting_that_shortens_answers_cannot_win(lab: Lab) -> None:
    lab.script({"when": {"max_running_requests": 4}, "tokens": 2})
    assert lab.tune({WINDOW: [4]}, "objective.goals=[minimize:e2e_s_p50]") == 0
    (failed,) = lab.trials("FAIL")
    assert "answers are shorter than asked" in failed["reason"]
    assert json.loads((lab.study / failed["record"]).read_text())["valid"]


@pytest.mark.slow
def test_a_winner_that_fails_when_repeated_makes_way_for_the_next(lab: Lab) -> None:
    lab.script(
        {"when": {"max_running_requests": 4}, "tokens": FAST, "until": 2},
        {"when": {"max_running_requests": 4}, "do": "refuse"},
        {"when": {"max_running_requests": 8}, "tokens": 10**9},
    )
    assert lab.tune({WINDOW: [4, 8]}) == 0
    assert lab.summary["closing"]["unreliable"] == [1]
    assert lab.summary["trials"][lab.summary["winner"]]["params"] == {WINDOW: 8}
