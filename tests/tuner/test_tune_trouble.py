"""Studies whose files cannot be written, and studies that find nothing: one line, the table, and a way on."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from sglk_tuner.display import Display
from sglk_tuner.outcome import Outcome
from sglk_tuner.owner import this_process
from sglk_tuner.study import OWNER, Study
from sglk_tuner.trial import Bench

from sglk.bench.record import Record
from sglk.cli import main
from tests.tuner.lab import Lab

WINDOW = "runtime.max_running_requests"
SPACE: dict[str, list[Any]] = {WINDOW: [4, 8]}


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow, in this process alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def error_of(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what was printed and the one line of the error."""
    out, error = capsys.readouterr()
    assert error.count("\n") == 1, error
    assert "internal error" not in error
    return out, error


def test_a_profile_that_cannot_be_written_is_refused_before_anything_runs(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab.folder / "pf").touch()
    assert lab.tune(SPACE, "study.profiles=pf") == 2
    assert "study.profiles='pf'" in error_of(capsys)[1]
    assert not lab.study.exists()
    assert lab.tune(SPACE, "study.profiles=pf", "study.save_profile=false") == 0


def test_a_profile_that_fails_at_the_end_leaves_the_table(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load_file = Record.load_file

    def block(path: Path) -> Record:
        (lab.folder / "profiles").touch()
        return load_file(path)

    monkeypatch.setattr(Record, "load_file", block)
    assert lab.tune(SPACE) == 1
    out, error = error_of(capsys)
    assert "cannot write the profile 'profiles/cpu/smollm2.yaml'" in error
    assert out.count("COMPLETE") >= 3
    assert lab.summary["profile"] is None


def test_a_study_folder_that_cannot_be_made_is_one_line(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    (lab.folder / "studies").touch()
    assert lab.tune(SPACE) == 2
    assert "study.directory=" in error_of(capsys)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "step", "words"),
    [(Record, "save", "cannot write record"), (Study, "finish", "cannot use the study storage 'sqlite:///")],
)
def test_a_full_disk_ends_the_study_with_its_table_and_it_goes_on_later(
    lab: Lab,
    owner: type,
    step: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert lab.tune(SPACE, "search.n_trials=1") == 0
    capsys.readouterr()
    real = getattr(owner, step)

    def on_a_full_disk(*arguments: Any) -> Any:
        with full_disk():
            return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, on_a_full_disk)
        assert lab.tune(SPACE) == 1
    out, error = error_of(capsys)
    assert words in error
    assert str(Path("studies") / "s") in error
    assert "COMPLETE" in out
    assert lab.engine_pids() == set()
    assert lab.tune(SPACE) == 0
    assert {trial["params"][WINDOW] for trial in lab.trials("COMPLETE")} == {4, 8, 16}


@pytest.mark.slow
@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_text("{")])
def test_a_study_whose_records_are_lost_says_what_to_do(
    lab: Lab, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object]
) -> None:
    assert lab.tune({WINDOW: [16]}) == 0
    damage(lab.study / "trials" / "000.json")
    capsys.readouterr()

    assert lab.tune({WINDOW: [16]}) == 1

    message = capsys.readouterr().err
    assert "000.json" in message
    assert message.endswith("bring the file back, or start a new study with study.name=...\n")


def test_a_full_disk_before_the_first_trial_is_one_line(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune(SPACE, "search.n_trials=1") == 0
    capsys.readouterr()
    words = lab.words(SPACE)
    with full_disk():
        assert main(["tune", *words]) == 2
    error_of(capsys)


def test_a_reader_who_has_gone_interrupts_a_study(lab: Lab) -> None:
    points = {WINDOW: [4, 8, 16, 32]}
    # It cannot be over before the reader is gone.
    lab.script({"when": {"max_running_requests": 32}, "do": "hang"})
    with lab.start(points, "study.trial_timeout_s=10") as study:
        assert study.stdout is not None
        study.stdout.readline()
        study.stdout.close()
        assert study.wait(120) == 141
    assert lab.summary["status"] == "interrupted"
    lab.script()
    assert lab.tune(points, "study.trial_timeout_s=10") == 0
    assert lab.summary["status"] == "finished"


def test_what_the_system_refuses_fails_a_study(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Display, "begin", refuse)
        assert lab.tune(SPACE) == 1
    assert "No space left on device" in error_of(capsys)[1]
    assert lab.summary["status"] == "failed"
    assert lab.tune(SPACE) == 0
    assert lab.summary["status"] == "finished"


def test_limits_that_no_setting_meets_make_no_profile(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.tune(SPACE, "objective=goodput", "objective.slo.ttft_s=0.0000001") == 1
    out, error = error_of(capsys)
    assert "no setting of study 's' meets the limits: goodput is 0 for all 3" in error
    assert out.count("COMPLETE") >= 3
    assert "best" not in out.partition("study s:")[2]
    assert (lab.summary["status"], lab.summary["winner"]) == ("failed", None)
    assert not lab.profile.exists()


@pytest.mark.parametrize(("ends", "code"), [(True, 130), (False, 1)])
def test_what_another_machine_took_over_is_published_by_it_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: bool, code: int
) -> None:
    def taken_over_meanwhile(*_: object) -> Outcome:
        stored = optuna.load_study(study_name="s", storage=f"sqlite:///{lab.study / 'study.db'}")
        stored.set_user_attr(OWNER, {**this_process(60.0), "host": "elsewhere"})
        (lab.study / "summary.json").write_text("theirs")
        if ends:
            raise KeyboardInterrupt
        return Outcome("COMPLETE", values=(1.0,))

    monkeypatch.setattr(Bench, "run", taken_over_meanwhile)
    assert lab.tune({WINDOW: [4, 8]}) == code
    shown = capsys.readouterr()
    told = shown.out if ends else shown.err
    assert f"study 's' was taken over by process {os.getpid()} on elsewhere" in told
    assert (lab.study / "summary.json").read_text() == "theirs"
    assert not lab.profile.exists()
