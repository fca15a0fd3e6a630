import json
import sqlite3
import sys
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sglk_tuner import owner

from sglk.bench.record import Record
from sglk.config.compose import compose
from sglk.config.profiles import content_hash
from sglk.server.announcement import profile_line
from tests.tuner.lab import Lab

WINDOW = "runtime.max_running_requests"
POLICY = "runtime.schedule_policy"
DTYPE = "runtime.dtype"
DEFAULT_WINDOW = 16

TWELVE: dict[str, list[Any]] = {
    "runtime.chunked_prefill_size": [512, 1024, 2048],
    WINDOW: [8, 16],
    POLICY: ["fcfs", "lpm"],
}
"""Twelve points, the default among them."""


def test_the_winner_becomes_the_profile_of_the_next_serve(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": {"max_running_requests": 4}, "tokens": 4_000_000})
    assert lab.tune({WINDOW: [4, 8]}, "study.repeats=2") == 0
    assert "next: sglk serve --config-dir conf chip=cpu model=smollm2" in capsys.readouterr().out
    served = compose("serve", ["chip=cpu", "model=smollm2"])
    assert served.config.runtime.max_running_requests == 4
    assert "profile" in served.sources[WINDOW]
    assert served.config.profile is not None
    assert served.config.profile.kind == "measured"
    assert served.config.profile.gain["output_throughput"]["pairs"] == 2
    assert served.config.profile.chip.driver == "1.2"
    assert compose("serve", ["profiles=none"]).config.runtime.max_running_requests == DEFAULT_WINDOW


def test_one_process_measures_all_settings_with_its_weights_kept_and_its_cache_empty(lab: Lab) -> None:
    assert lab.tune({WINDOW: [4, 8], POLICY: ["fcfs", "lpm"]}) == 0
    assert len(lab.events("start")) == 1
    assert lab.engine_pids() == set()
    assert {event["cached"] for event in lab.events("generate")} == {0}
    for trial in lab.trials("COMPLETE"):
        record = Record.load_file(lab.study / trial["record"])
        assert record.valid
        assert record.load.cache == "flush"
        assert record.summary["cached_share"] == 0
        assert str(record.command).startswith("sglk tune")
        assert {f"runtime.{key}": value for key, value in (record.runtime or {}).items()}.items() >= trial[
            "params"
        ].items()
    assert len(lab.trials("COMPLETE")) == 5


@pytest.mark.slow
def test_a_key_that_needs_new_weights_restarts_once_per_value(lab: Lab) -> None:
    assert lab.tune({WINDOW: [4, 8], DTYPE: ["fp32", "bf16"]}) == 0
    # The default, `auto`, then fp32 and bf16, and perhaps two more for the closing comparison.
    starts = [event["runtime"]["dtype"] for event in lab.events("start")]
    assert starts[:2] == ["fp32", "bf16"] or starts[1:3] == ["fp32", "bf16"]
    assert len(lab.trials("COMPLETE")) == 5


def test_the_default_is_measured_first_and_not_twice(lab: Lab) -> None:
    assert lab.tune(TWELVE) == 0
    summary = lab.summary
    assert summary["planned"] == summary["done"] == 12
    assert len(lab.trials("COMPLETE")) == 12
    assert summary["trials"][0]["source"] == "default"
    assert summary["trials"][0]["params"][WINDOW] == DEFAULT_WINDOW
    assert summary["baseline"] == 0


def test_a_finished_study_runs_nothing_and_prints_its_result(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune({WINDOW: [4, 16]}) == 0
    measured, profile = len(lab.events("generate")), lab.profile.read_text()
    capsys.readouterr()
    assert lab.tune({WINDOW: [4, 16]}) == 0
    assert len(lab.events("generate")) == measured
    assert len(lab.events("start")) == 1
    assert "COMPLETE" in capsys.readouterr().out
    assert lab.profile.read_text() == profile
    assert list(lab.profile.parent.glob("*.bak")) == []


@pytest.mark.parametrize("best", [4, DEFAULT_WINDOW])
def test_what_has_expired_is_measured_again_by_the_command_that_found_it(
    lab: Lab, best: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.script({"when": {"max_running_requests": best}, "tokens": 4_000_000})
    words = ({WINDOW: [4]}, "study.repeats=2", "server.api_key=hidden-key")
    assert lab.tune(*words) == 0
    measured = len(lab.events("generate"))
    _backdate(lab)
    (warning,) = compose("serve", ["chip=cpu", "model=smollm2"]).warnings
    assert "expired on" in warning
    assert "; measure it again: sglk tune --config-dir conf chip=cpu model=smollm2" in warning
    assert "hidden-key" not in warning + lab.profile.read_text()

    capsys.readouterr()
    assert lab.tune(*words) == 0
    assert "has expired" in capsys.readouterr().out
    assert len(lab.trials("COMPLETE")) == 2
    assert len(lab.events("generate")) > measured
    assert lab.summary["trials"][lab.summary["winner"]]["params"] == {WINDOW: best}
    served = compose("serve", ["chip=cpu", "model=smollm2"])
    assert served.warnings == []
    assert served.config.profile is not None
    assert served.config.profile.validated == date.today().isoformat()
    assert served.config.profile.results["repeats"] == 2

    measured = len(lab.events("generate"))
    assert lab.tune(*words) == 0
    assert len(lab.events("generate")) == measured


def _backdate(lab: Lab) -> None:
    """Let the study have run a year ago, and its profile be written then."""
    for path in [*lab.study.glob("trials/*.json"), *lab.study.glob("closing/*.json")]:
        record = Record.load_file(path)
        record.created = (datetime.fromisoformat(record.created) - timedelta(days=365)).isoformat()
        record.save(path)
    content = yaml.safe_load(lab.profile.read_text())
    content["profile"]["expires"] = "2020-01-01"
    content["profile"]["hash"] = content_hash(content)
    lab.profile.write_text(yaml.safe_dump(content))


def test_a_profile_that_was_changed_is_written_again(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": {"max_running_requests": 4}, "tokens": 4_000_000})
    assert lab.tune({WINDOW: [4]}) == 0
    written = lab.profile.read_text()
    lab.profile.write_text(written.replace("  max_running_requests: 4\n", "  max_running_requests: 5\n", 1))
    assert "was changed after" in compose("serve", ["chip=cpu", "model=smollm2"]).warnings[0]
    assert lab.tune({WINDOW: [4]}) == 0
    assert lab.profile.read_text() == written


@pytest.mark.slow
def test_n_trials_counts_all_trials_of_the_study(lab: Lab) -> None:
    assert lab.tune(TWELVE, "search.n_trials=3") == 0
    assert len(lab.trials("COMPLETE")) == 3
    assert lab.tune(TWELVE, "search.n_trials=5") == 0
    assert len(lab.trials("COMPLETE")) == 5


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


@pytest.mark.slow
def test_duplicate_candidates_are_measured_once_with_a_notice(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune({WINDOW: [8, 8, 16]}) == 0
    assert "lists 8 more than once" in capsys.readouterr().out
    assert len(lab.trials("COMPLETE")) == 2


def test_impossible_combinations_are_listed_and_not_measured(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune({"runtime.chunked_prefill_size": [48, 512], "runtime.page_size": [16, 32]}) == 0
    assert "not a multiple of runtime.page_size=32" in capsys.readouterr().out
    (impossible,) = lab.summary["impossible"]
    assert impossible["params"] == {"runtime.chunked_prefill_size": 48, "runtime.page_size": 32}
    assert len(lab.trials("COMPLETE")) == 3


def test_engine_failures_are_failed_trials_and_the_rest_runs(lab: Lab) -> None:
    lab.script(
        {"when": {"max_running_requests": 2}, "do": "exit"},
        {"when": {"max_running_requests": 3}, "do": "kill"},
        {"when": {"max_running_requests": 4}, "do": "hang"},
        {"when": {"max_running_requests": 5}, "do": "refuse"},
        {"when": {"max_running_requests": 1}, "do": "refuse_setting"},
    )
    assert lab.tune({WINDOW: [1, 2, 3, 4, 5, 7]}, "study.trial_timeout_s=2") == 0
    failed = {trial["params"][WINDOW]: trial for trial in lab.trials("FAIL")}
    assert sorted(failed) == [1, 2, 3, 4, 5]
    assert "exited with code 3: RuntimeError: device out of memory" in failed[2]["reason"]
    assert "killed by SIGKILL: it printed nothing after it was ready" in failed[3]["reason"]
    assert "study.trial_timeout_s=2" in failed[4]["reason"]
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


def test_two_goals_give_a_front_and_a_profile_by_the_stated_rule(lab: Lab) -> None:
    lab.script({"when": {"max_running_requests": 4}, "tokens": 4_000_000})
    goals = "objective.goals=[maximize:output_throughput,maximize:success_rate]"
    assert lab.tune({WINDOW: [4, 8]}, goals) == 0
    summary = lab.summary
    assert summary["trials"][summary["winner"]]["pareto"]
    assert "Pareto front" in summary["rule"]
    assert summary["rule"] in lab.profile.read_text().replace("\n     ", "")


def test_a_pruner_and_two_goals_are_refused_before_anything_starts(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.tune({WINDOW: [4]}, "objective=balanced", "search.pruner=median") == 2
    assert "search.pruner" in capsys.readouterr().err
    assert lab.events("start") == []


@pytest.mark.slow
def test_the_median_pruner_stops_what_a_probe_shows_to_be_bad(lab: Lab) -> None:
    lab.script({"when": {"max_running_requests": 64}, "do": "refuse_half"})
    space = {WINDOW: [2, 4, 6, 8, 10, 64]}
    goal = "objective.goals=[maximize:success_rate]"
    assert lab.tune(space, goal, "search.pruner=median", "workload.num_requests=8") == 0
    (pruned,) = lab.trials("PRUNED")
    assert pruned["params"] == {WINDOW: 64}
    assert "probe of 2 requests gave success_rate=0.5" in pruned["reason"]


def test_when_all_settings_tie_the_default_stays(lab: Lab) -> None:
    assert lab.tune({WINDOW: [4, 8]}, "objective.goals=[maximize:success_rate]") == 0
    assert lab.summary["winner"] == lab.summary["baseline"] == 0
    served = compose("serve", ["chip=cpu", "model=smollm2"])
    assert served.profile_path == lab.profile
    assert served.config.runtime.max_running_requests == DEFAULT_WINDOW


def test_another_machine_hears_of_the_study_before_every_measurement(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    signs: list[owner.Owner] = []
    this_process = owner.this_process

    def heard(silent_s: float) -> owner.Owner:
        signs.append(this_process(silent_s))
        return signs[-1]

    monkeypatch.setattr(owner, "this_process", heard)
    lab.script({"when": {"max_running_requests": 4}, "tokens": 4_000_000})
    assert lab.tune({WINDOW: [4]}, "study.repeats=2") == 0
    measurements = 2 + len(lab.summary["closing"]["measurements"])
    assert measurements == 6
    assert len(signs) == 1 + measurements


@pytest.mark.slow
def test_a_winner_by_luck_does_not_replace_the_default(lab: Lab) -> None:
    """The challenger is fast in its trial and slow afterwards: no gain is claimed."""
    # Then slower than the default, not as fast: of equals one is ahead in three pairs out of three every eighth time.
    lab.script(
        {"when": {"max_running_requests": 4}, "tokens": 4_000_000, "until": 2},
        {"when": {"max_running_requests": 16}, "tokens": 4_000},
    )
    assert lab.tune({WINDOW: [4]}) == 0
    closing = lab.summary["closing"]
    assert (closing["winner"], closing["accepted"], closing["beyond_noise"]) == (1, False, False)
    assert lab.summary["winner"] == 0
    assert "the default configuration stays" in closing["verdict"]
    served = compose("serve", ["chip=cpu", "model=smollm2"])
    assert served.config.runtime.max_running_requests == DEFAULT_WINDOW
    assert served.config.profile is not None
    assert served.config.profile.gain == {"verdict": closing["verdict"]}
    assert "against the defaults" not in profile_line(served.config, served.profile_path)


@pytest.mark.slow
def test_a_winner_that_fails_when_repeated_makes_way_for_the_next(lab: Lab) -> None:
    lab.script(
        {"when": {"max_running_requests": 4}, "tokens": 9_000_000_000, "until": 2},
        {"when": {"max_running_requests": 4}, "do": "refuse"},
        {"when": {"max_running_requests": 8}, "tokens": 4_000_000},
    )
    assert lab.tune({WINDOW: [4, 8]}) == 0
    assert lab.summary["closing"]["unreliable"] == [1]
    assert lab.summary["trials"][lab.summary["winner"]]["params"] == {WINDOW: 8}


@pytest.mark.slow
def test_simulated_results_are_never_written_as_measured(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune({WINDOW: [4]}) == 0
    measured = lab.profile.read_text()
    lab.script(backend="sim")
    assert lab.tune({WINDOW: [4]}, "study.name=simulated") == 0
    assert "this study was simulated" in capsys.readouterr().out
    assert lab.profile.read_text() == measured
    lab.profile.unlink()
    assert lab.tune({WINDOW: [4]}, "study.name=simulated") == 0
    assert "kind: simulated" in lab.profile.read_text()


def test_an_older_profile_is_kept(lab: Lab) -> None:
    lab.profile.parent.mkdir(parents=True)
    lab.profile.write_text("# by hand\nruntime: {page_size: 32}\n")
    assert lab.tune({WINDOW: [4]}) == 0
    (kept,) = lab.profile.parent.glob("*.bak")
    assert kept.read_text() == "# by hand\nruntime: {page_size: 32}\n"


@pytest.mark.slow
def test_what_the_user_fixed_for_the_study_is_part_of_the_profile(lab: Lab) -> None:
    lab.script({"when": {"max_running_requests": 4}, "tokens": 4_000_000})
    assert lab.tune({WINDOW: [4]}, "runtime.page_size=32", "runtime.random_seed=7") == 0
    runtime = compose("serve", ["chip=cpu", "model=smollm2"]).config.runtime
    assert (runtime.page_size, runtime.max_running_requests, runtime.random_seed) == (32, 4, 0)


def test_a_study_begins_with_what_another_one_found(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": {"max_running_requests": 8}, "tokens": 4_000_000})
    assert lab.tune({WINDOW: [4, 8]}, "study.name=other", "study.repeats=1") == 0
    space = {WINDOW: [1, 2, 6, 7]}
    assert lab.tune(space, "search.start_from=studies/other", "search.n_trials=2", "study.repeats=1") == 0
    out = capsys.readouterr().out
    assert "first come the best settings of study other (measured on cpu): max_running_requests=7" in out
    assert [(trial["source"], trial["params"][WINDOW]) for trial in lab.trials("COMPLETE")] == [
        ("default", DEFAULT_WINDOW),
        ("carried", 7),
    ]


def test_a_study_to_begin_with_that_is_none_is_one_line(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    (lab.folder / "empty").mkdir()
    (lab.folder / "empty" / "summary.json").write_text('{"schema": "sglk.study/1"}')
    for folder in ("nowhere", "empty"):
        assert lab.tune({WINDOW: [4]}, f"search.start_from={folder}") == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"search.start_from='{folder}'" in error
        assert "name the folder of a study" in error
    assert lab.events("start") == []


@pytest.mark.slow
def test_tpe_and_random_keep_to_the_space_and_the_budget(lab: Lab) -> None:
    for sampler, budget in (("random", 3), ("tpe", 7)):
        assert lab.tune(TWELVE, f"search.sampler={sampler}", f"search.n_trials={budget}") == 0
        trials = lab.trials("COMPLETE")
        assert len({json.dumps(trial["params"], sort_keys=True) for trial in trials}) == budget
        assert all(trial["params"][key] in values for trial in trials for key, values in TWELVE.items())


@pytest.mark.slow
def test_a_storage_of_the_user_s_own_is_used(lab: Lab) -> None:
    assert lab.tune({WINDOW: [4]}, "study.storage='sqlite:///mine.db'") == 0
    with sqlite3.connect(lab.folder / "mine.db") as database:
        (count,) = database.execute("select count(*) from trials").fetchone()
    database.close()
    assert count == 2
    assert not (lab.study / "study.db").exists()


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
