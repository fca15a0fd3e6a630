"""The profile that a study writes, renews and keeps."""

from datetime import date, datetime, timedelta

import pytest
import yaml

from sglk.bench.record import Record
from sglk.config.compose import compose
from sglk.config.profiles import content_hash
from tests.tuner.lab import Lab
from tests.tuner.spaces import DEFAULT_WINDOW, WINDOW


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
