"""The tuner dies, or is asked to end, in the middle of a trial."""

import signal
from typing import Any

import pytest

from tests.tuner.lab import Lab
from tests.tuner.spaces import TWELVE, WINDOW
from tests.waiting import wait_until

SIXTH = {"chunked_prefill_size": 1024, "max_running_requests": 8, "schedule_policy": "lpm"}
"""The point that a grid over `TWELVE` reaches after five others."""


def reached(lab: Lab, setting: dict[str, Any]) -> bool:
    return any(setting.items() <= event["runtime"].items() for event in lab.events("generate"))


def test_a_killed_study_goes_on_exactly_where_it_was(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": SIXTH, "do": "hang"})
    tuner = lab.start(TWELVE)
    wait_until(lambda: reached(lab, SIXTH))
    tuner.kill()
    tuner.communicate()
    wait_until(lambda: not lab.engine_pids())
    assert len(lab.trials("COMPLETE")) == 5

    lab.script()
    assert lab.tune(TWELVE) == 0
    assert "trial 5 was left running" in capsys.readouterr().out
    trials = lab.summary["trials"]
    assert len(lab.trials("COMPLETE")) == 12
    assert [trial["number"] for trial in trials] == list(range(13))
    (ghost,) = lab.trials("FAIL")
    assert (ghost["number"], ghost["reason"]) == (5, "killed")
    assert [trial["number"] for trial in trials if trial["params"] == ghost["params"]] == [5, 6]
    assert lab.engine_pids() == set()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_study_closes_its_trial_and_can_be_resumed(
    lab: Lab, signum: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {WINDOW: [4, 8]}
    lab.script({"when": {"max_running_requests": 8}, "do": "hang"})
    tuner = lab.start(space)
    wait_until(lambda: reached(lab, {"max_running_requests": 8}))

    # Meanwhile nobody else may run this study.
    assert lab.tune(space) == 1
    assert f"in use by process {tuner.pid}" in capsys.readouterr().err

    tuner.send_signal(signum)
    output, _ = tuner.communicate(timeout=120)
    assert tuner.returncode == 130
    assert "interrupted after 2 of 3 settings" in output
    assert "Traceback" not in output
    assert lab.engine_pids() == set()
    assert lab.summary["status"] == "interrupted"
    (interrupted,) = lab.trials("FAIL")
    assert interrupted["reason"] == "interrupted"
    (waiting,) = lab.trials("WAITING")
    assert waiting["params"] == interrupted["params"] == {WINDOW: 8}

    lab.script()
    assert lab.tune(space) == 0
    assert len(lab.trials("COMPLETE")) == 3
    assert lab.summary["status"] == "finished"
