"""What is not searched, and what a plan says before anything starts."""

import sys
from pathlib import Path

import pytest

from tests.tuner.lab import Lab
from tests.tuner.spaces import DTYPE, TWELVE, WINDOW


@pytest.mark.parametrize(
    ("change", "named"), [("objective=latency", "goals: "), ("workload.seed=1", "workload.seed: 0 -> 1")]
)
def test_another_question_is_refused_with_the_difference(
    lab: Lab, change: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.tune({WINDOW: [4, 8]}, "search.n_trials=1") == 0
    starts = len(lab.events("start"))
    assert lab.tune({WINDOW: [4, 8]}, change) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert named in error
    assert "study.name=" in error
    assert len(lab.events("start")) == starts


def test_a_pruner_and_two_goals_are_refused_before_anything_starts(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.tune({WINDOW: [4]}, "objective=balanced", "search.pruner=median") == 2
    assert "search.pruner" in capsys.readouterr().err
    assert lab.events("start") == []


def test_a_study_to_begin_with_that_is_none_is_one_line(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    (lab.folder / "empty").mkdir()
    (lab.folder / "empty" / "summary.json").write_text('{"schema": "sglk.study/1"}')
    for folder in ("nowhere", "empty"):
        assert lab.tune({WINDOW: [4]}, f"search.start_from={folder}") == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"search.start_from='{folder}'" in error
        assert "name the folder of a study with results" in error
    assert lab.events("start") == []


def test_a_storage_that_cannot_be_opened_is_one_line(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    for storage in ("nosuch://user:secret@host/db", "journal:///study.log", "study.log"):
        assert lab.tune({WINDOW: [4]}, f"study.storage='{storage}'") == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "such as sqlite:///studies.db" in error
        assert "secret" not in error


def test_limits_beside_those_of_the_objective_are_refused(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune({WINDOW: [4]}, "objective=goodput", "bench.slo.ttft_s=0.5") == 2
    assert "write objective.slo.ttft_s=0.5" in capsys.readouterr().err
    assert lab.tune({WINDOW: [4]}, "objective=goodput", "bench.slo.ttft_s=2", "--dry-run") == 0
    assert lab.tune({WINDOW: [4]}, "bench.slo.ttft_s=0.5", "--dry-run") == 0


def test_dry_run_prints_the_plan_and_touches_nothing(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune(TWELVE, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "12 of 12 possible settings" in out
    assert out.count("schedule_policy=lpm") == 6
    assert not (lab.folder / "studies").exists()


def test_a_plan_does_not_say_how_often_a_search_will_start_the_engine(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.tune({WINDOW: [4, 8], DTYPE: ["fp32", "bf16"]}, "--dry-run") == 0
    assert "the engine starts 3 times" in capsys.readouterr().out
    assert lab.tune({WINDOW: [4, 8], DTYPE: ["fp32", "bf16"]}, "search.sampler=tpe", "--dry-run") == 0
    assert "the engine starts anew where a chosen setting needs it" in capsys.readouterr().out
    assert lab.tune({WINDOW: [4, 8]}, "search.sampler=tpe", "--dry-run") == 0
    assert "the engine starts 1 time\n" in capsys.readouterr().out


def test_a_running_server_is_not_tuned(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune({WINDOW: [4]}, "bench.url=http://127.0.0.1:1") == 2
    assert "bench.url" in capsys.readouterr().err


def test_a_study_of_someone_else_is_left_alone(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    import optuna

    url = f"sqlite:///{Path.cwd() / 'mine.db'}"
    optuna.logging.disable_default_handler()
    study = optuna.create_study(storage=url, study_name="s", direction="maximize")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert lab.tune({WINDOW: [4]}, f"study.storage='{url}'") == 2
    assert "sglk did not make" in capsys.readouterr().err


def test_without_optuna_the_extra_is_named(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name == "optuna" or name.startswith(("optuna.", "sglk_tuner"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert lab.tune({WINDOW: [4]}) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "pip install 'sglk[tune]'" in error
