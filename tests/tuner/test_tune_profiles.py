"""The profile that a study writes, renews and keeps."""

from datetime import datetime, timedelta, timezone

import pytest
import yaml

from sglk.bench.record import Record
from sglk.config.compose import compose
from sglk.config.profiles import content_hash
from tests.tuner.lab import FAST, Lab
from tests.tuner.spaces import DEFAULT_WINDOW, WINDOW


def test_the_winner_becomes_the_profile_of_the_next_serve(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": {"max_running_requests": 4}, "tokens": FAST})
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


@pytest.mark.parametrize("best", [4, DEFAULT_WINDOW])
def test_what_has_expired_is_measured_again_by_the_command_that_found_it(
    lab: Lab, best: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.script({"when": {"max_running_requests": best}, "tokens": FAST})
    words = ({WINDOW: [4]}, "study.repeats=2", "server.api_key=hidden-key")
    assert lab.tune(*words) == 0
    measured = len(lab.events("generate"))
    _backdate(lab)
    today = _today()
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
    assert served.config.profile.validated in (today, _today())
    assert served.config.profile.results["repeats"] == 2

    measured = len(lab.events("generate"))
    assert lab.tune(*words) == 0
    assert len(lab.events("generate")) == measured


@pytest.mark.slow
def test_a_renewal_that_was_stopped_before_its_last_measurement_is_made_again(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """All records of the default, which stayed, are new already."""
    lab.script(
        {"when": {"max_running_requests": 4}, "tokens": FAST, "until": 2},
        {"when": {"max_running_requests": 16}, "tokens": 4_000},
    )
    words = ({WINDOW: [4]}, "study.repeats=2")
    assert lab.tune(*words) == 0
    assert lab.summary["winner"] == 0
    _backdate(lab, "closing/001-2.json")
    measured = len(lab.events("generate"))
    capsys.readouterr()
    today = _today()
    assert lab.tune(*words) == 0
    assert "has expired" in capsys.readouterr().out
    assert len(lab.events("generate")) > measured
    dates = [Record.load_file(path).created[:10] for path in lab.study.glob("closing/*.json")]
    assert len(dates) == 4
    assert min(dates) >= today


@pytest.mark.slow
def test_a_new_number_of_repeats_after_a_renewal_does_not_bring_back_what_has_expired(lab: Lab) -> None:
    """The default is the best: there is no comparison."""
    lab.script({"when": {"max_running_requests": DEFAULT_WINDOW}, "tokens": FAST})
    assert lab.tune({WINDOW: [4]}, "study.repeats=2") == 0
    _backdate(lab)
    for repeats in (2, 1):
        assert lab.tune({WINDOW: [4]}, f"study.repeats={repeats}") == 0
        served = compose("serve", ["chip=cpu", "model=smollm2"])
        assert served.warnings == []
        assert served.config.profile is not None
        assert served.config.profile.results["repeats"] == repeats


def _today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


def _backdate(lab: Lab, *records: str) -> None:
    """Let the study have run a year ago, or these of its records be from then, and its profile be written then."""
    files = records or ("trials/*.json", "closing/*.json")
    for path in [path for file in files for path in lab.study.glob(file)]:
        record = Record.load_file(path)
        record.created = (datetime.fromisoformat(record.created) - timedelta(days=365)).isoformat()
        record.save(path)
    content = yaml.safe_load(lab.profile.read_text())
    content["profile"]["expires"] = "2020-01-01"
    content["profile"]["hash"] = content_hash(content)
    lab.profile.write_text(yaml.safe_dump(content))


def test_a_profile_that_was_changed_is_written_again(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.script({"when": {"max_running_requests": 4}, "tokens": FAST})
    assert lab.tune({WINDOW: [4]}) == 0
    written = lab.profile.read_text()
    lab.profile.write_text(written.replace("  max_running_requests: 4\n", "  max_running_requests: 5\n", 1))
    assert "was changed after" in compose("serve", ["chip=cpu", "model=smollm2"]).warnings[0]
    assert lab.tune({WINDOW: [4]}) == 0
    assert lab.profile.read_text() == written


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
    lab.script({"when": {"max_running_requests": 4}, "tokens": FAST})
    assert lab.tune({WINDOW: [4]}, "runtime.page_size=32", "runtime.random_seed=7") == 0
    runtime = compose("serve", ["chip=cpu", "model=smollm2"]).config.runtime
    assert (runtime.page_size, runtime.max_running_requests, runtime.random_seed) == (32, 4, 0)
