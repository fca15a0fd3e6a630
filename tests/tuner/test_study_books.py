import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from sglk_tuner import owner
from sglk_tuner.identity import differences, identity_of
from sglk_tuner.outcome import Outcome
from sglk_tuner.proposals import tried
from sglk_tuner.space import build_space, params_of
from sglk_tuner.study import OWNER, Study, open_study, study_name

from sglk.config.compose import compose
from sglk.config.tune_schema import StudyConfig, TuneConfig
from sglk.errors import ConfigError, RunError
from sglk.interrupt import interruptible
from tests.tuner.studies import FASTER, POLICY, WINDOW, config_of

SPACE: dict[str, list[Any]] = {WINDOW: [4, 8], POLICY: ["fcfs", "lpm"]}


def study_config(folder: Path) -> TuneConfig:
    config = config_of(SPACE)
    config.study = StudyConfig(name="s", directory=str(folder))
    return config


@contextmanager
def opened(config: TuneConfig) -> Iterator[Study]:
    space, goals = build_space(config), (FASTER,)
    default = params_of(config, space.candidates)
    with open_study(config, space, goals, default, identity_of(config, space, goals, default)) as study:
        yield study


def database(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name="s", storage=f"sqlite:///{folder / 's' / 'study.db'}")


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("name", ["a?b=1", "a%20b", "a#b", "{a}", "a b'c"])
def test_any_folder_may_hold_a_study(tmp_path: Path, name: str, recwarn: pytest.WarningsRecorder) -> None:
    config = study_config(tmp_path / name)
    with opened(config) as study:
        study.finish(study.begin({WINDOW: 8, POLICY: "lpm"}, "grid"), Outcome("COMPLETE", values=(1.0,)))
    with opened(config) as study:
        assert [trial.state for trial in study.trials()] == ["COMPLETE"]
    assert {path.name for path in tmp_path.iterdir()} == {name}
    assert (tmp_path / name / "s" / "study.db").is_file()


def test_a_trial_that_still_runs_has_no_result(tmp_path: Path) -> None:
    with opened(study_config(tmp_path)) as study:
        study.begin({WINDOW: 8, POLICY: "lpm"}, "grid")
        assert tried(study.trials(), study.lost()) == {}


def test_a_damaged_storage_is_named_with_the_words_of_the_database(tmp_path: Path) -> None:
    with opened(study_config(tmp_path)):
        file = tmp_path / "s" / "study.db"
    with file.open("r+b") as damaged:
        damaged.seek(16384)
        damaged.write(os.urandom(65536))
    with (
        pytest.raises(RunError, match=r"cannot (open|use) the study storage .*(malformed|not a database)"),
        opened(study_config(tmp_path)) as study,
    ):
        study.trials()


def test_trials_come_back_as_they_were_stored(tmp_path: Path) -> None:
    config = study_config(tmp_path)
    with opened(config) as study:
        number = study.begin({WINDOW: 8, POLICY: "lpm"}, "grid")
        study.finish(number, Outcome("COMPLETE", values=(12.5,), record="trials/000.json", log="engine-001.log"))
        number = study.begin({WINDOW: 4, POLICY: "lpm"}, "grid")
        study.finish(number, Outcome("FAIL", reason="out of memory"))
    with opened(config) as study:
        good, bad = study.trials()
    assert (good.state, good.params, good.values) == (
        "COMPLETE",
        {WINDOW: 8, POLICY: "lpm"},
        {"output_throughput": 12.5},
    )
    assert (good.record, good.log, good.source) == ("trials/000.json", "engine-001.log", "grid")
    assert (bad.state, bad.reason, bad.values) == ("FAIL", "out of memory", {})


def test_the_storage_holds_real_values_that_optuna_s_own_tools_read(tmp_path: Path) -> None:
    with opened(study_config(tmp_path)) as study:
        for window, value in ((4, 1.0), (8, 2.0)):
            study.finish(study.begin({WINDOW: window, POLICY: "lpm"}, "grid"), Outcome("COMPLETE", values=(value,)))
    stored = database(tmp_path)
    assert stored.best_params == {WINDOW: 8, POLICY: "lpm"}
    assert isinstance(stored.best_trial.distributions[WINDOW], optuna.distributions.IntDistribution)


def test_a_dead_process_leaves_ghosts_that_are_closed_once(tmp_path: Path) -> None:
    config = study_config(tmp_path)
    with opened(config) as study:
        study.begin({WINDOW: 8, POLICY: "lpm"}, "grid")
    with opened(config) as study:
        assert study.close_ghosts() == [0]
        assert study.close_ghosts() == []
        (ghost,) = study.trials()
        assert (ghost.state, ghost.reason) == ("FAIL", "killed")
        assert study.lost() == {0}


@pytest.mark.parametrize(
    ("sent", "in_background"), [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)]
)
def test_an_interruption_waits_for_the_write_that_it_meets(
    tmp_path: Path, sent: signal.Signals, in_background: bool
) -> None:
    """Shells start what runs in the background with SIGINT ignored."""
    before = signal.getsignal(signal.SIGINT)
    if in_background:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupt(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.startswith("UPDATE trials"):
            signal.raise_signal(sent)

    try:
        with opened(study_config(tmp_path)) as study:
            number = study.begin({WINDOW: 8, POLICY: "lpm"}, "grid")
            sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", interrupt)
            try:
                with pytest.raises(KeyboardInterrupt), interruptible():
                    study.finish(number, Outcome("COMPLETE", values=(1.0,)))
            finally:
                sqlalchemy.event.remove(sqlalchemy.Engine, "after_cursor_execute", interrupt)
            assert study.close_ghosts() == []
            assert [trial.state for trial in study.trials()] == ["COMPLETE"]
    finally:
        signal.signal(signal.SIGINT, before)
        # A signal that ended the block has had the others ignored until the end of the process.
        for ignored in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_DFL)


def test_one_folder_has_one_process(tmp_path: Path) -> None:
    config = study_config(tmp_path)
    with opened(config), pytest.raises(RunError, match=f"in use by process {os.getpid()}"), opened(config):
        pass
    with opened(config):
        pass


def test_one_storage_has_one_process_even_from_two_folders(tmp_path: Path) -> None:
    config, other = study_config(tmp_path / "a"), study_config(tmp_path / "b")
    config.study.storage = other.study.storage = f"sqlite:///{tmp_path / 'shared.db'}"
    with opened(config), pytest.raises(RunError, match=f"being run by process {os.getpid()}"), opened(other):
        pass
    with opened(other):
        pass


@pytest.mark.parametrize(("silent_s", "alive"), [(-1.0, False), (60.0, True)])
def test_a_process_of_another_machine_counts_as_dead_after_its_silence(silent_s: float, alive: bool) -> None:
    assert owner.may_be_alive({**owner.this_process(silent_s), "host": "elsewhere"}) is alive


def test_a_process_whose_study_was_taken_over_leaves_it_to_the_other(tmp_path: Path) -> None:
    """It was silent for too long, or the other machine's clock is fast."""
    config, elsewhere = study_config(tmp_path), {**owner.this_process(60.0), "host": "elsewhere"}
    taken = f"taken over by process {os.getpid()} on elsewhere"
    with opened(config) as study:
        number, other = (study.begin({WINDOW: 8, POLICY: policy}, "grid") for policy in ("lpm", "fcfs"))
        database(tmp_path).set_user_attr(OWNER, elsewhere)
        with pytest.raises(RunError, match=taken):
            study.finish(number, Outcome("COMPLETE", values=(1.0,)))
        with pytest.raises(RunError, match=taken):
            study.keep()
        with pytest.raises(RunError, match=taken):
            study.write("device", "ours")
        with pytest.raises(RunError, match=taken):
            study.should_prune(other, 1.0)
    assert database(tmp_path).user_attrs[OWNER] == elsewhere
    assert "sglk:device" not in database(tmp_path).user_attrs
    assert {trial.state for trial in database(tmp_path).trials} == {optuna.trial.TrialState.RUNNING}
    assert database(tmp_path).trials[other].intermediate_values == {}
    with (
        pytest.raises(RunError, match=r"elsewhere \(free from 2\d{3}-.* UTC on, should that have died\)"),
        opened(config),
    ):
        pass


def test_a_machine_that_is_given_another_name_keeps_its_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(study_config(tmp_path)) as study:
        number = study.begin({WINDOW: 8, POLICY: "lpm"}, "grid")
        monkeypatch.setattr("socket.gethostname", lambda: "renamed")
        study.finish(number, Outcome("COMPLETE", values=(1.0,)))
        study.keep()
    assert database(tmp_path).user_attrs[OWNER] is None


def test_an_owner_that_died_is_no_owner(tmp_path: Path) -> None:
    config = study_config(tmp_path)
    with opened(config):
        pass
    database(tmp_path).set_user_attr(OWNER, {**owner.this_process(60.0), "pid": dead_process()})
    with opened(config) as study:
        assert study.trials() == []


def test_a_process_id_that_is_in_use_again_is_no_owner() -> None:
    assert owner.may_be_alive(owner.this_process(60.0))
    assert not owner.may_be_alive({**owner.this_process(60.0), "started": "1"})


def test_another_question_is_refused_entry_by_entry(tmp_path: Path) -> None:
    with opened(study_config(tmp_path)):
        pass
    changed = study_config(tmp_path)
    changed.workload.num_requests = 7
    changed.runtime.page_size = 32
    changed.search.space = {**SPACE, WINDOW: [4, 8, 12]}
    with pytest.raises(ConfigError) as refusal, opened(changed):
        pass
    for difference in (
        "workload.num_requests: 64 -> 7",
        "runtime.page_size: 16 -> 32",
        "space.runtime.max_running_requests: [4, 8] -> [4, 8, 12]",
    ):
        assert difference in str(refusal.value)
    changed.study.name = "new"
    with opened(changed) as study:
        assert study.name == "new"


def test_how_to_search_may_change_between_sessions(tmp_path: Path) -> None:
    with opened(study_config(tmp_path)):
        pass
    changed = study_config(tmp_path)
    changed.search.n_trials, changed.search.seed, changed.search.sampler = 3, 9, "random"
    changed.study.repeats = 5
    with opened(changed) as study:
        assert study.name == "s"


def test_identity_survives_the_storage(tmp_path: Path) -> None:
    config = study_config(tmp_path)
    space = build_space(config)
    identity = identity_of(config, space, (FASTER,), params_of(config, space.candidates))
    assert differences(json.loads(json.dumps(identity)), identity) == []


def test_a_study_from_before_a_model_had_further_numbers_is_still_the_same() -> None:
    model = compose("tune", ["chip=cpu", "model=deepseek_v2_lite", "engine=sglang"]).config.model
    config = config_of(SPACE)
    config.model = model
    space = build_space(config)
    new = identity_of(config, space, (FASTER,), params_of(config, space.candidates))
    old = json.loads(json.dumps(new))
    for number in ("qk_nope_head_dim", "v_head_dim", "q_lora_rank"):
        del old["model.numbers"][number]
    assert differences(old, new) == []


def test_a_study_is_named_for_what_it_measures(tmp_path: Path) -> None:
    config = study_config(tmp_path)
    config.study.name = None
    assert study_name(config) == "cpu-tiny-random-throughput"
    config.study.name = "../elsewhere"
    with pytest.raises(ConfigError, match=r"study\.name"):
        study_name(config)
