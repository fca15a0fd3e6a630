"""What is said of a tuned profile that may not hold."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglk import __version__
from sglk.cli import main
from sglk.config.compose import compose
from sglk.config.profile_doubts import doubts, today
from sglk.config.profiles import content_hash, engine_range
from sglk.config.provenance import ProfileChip, ProfileModel, ProfileRecord

LAST_DAY = today() + timedelta(days=2)
"""Tests may begin on one day and end on the next."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the profile of the default chip and model is looked for."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "profiles" / "cpu" / "smollm2.yaml"
    path.parent.mkdir(parents=True)
    return path


def content(**changes: Any) -> dict[str, Any]:
    """A sound profile, its hash included, with `changes` in its provenance."""
    facts: dict[str, Any] = {
        "chip": ProfileChip("cpu"),
        "model": ProfileModel("smollm2"),
        "created": f"{today().isoformat()}T10:00:00+00:00",
        "expires": LAST_DAY.isoformat(),
        **changes,
    }
    whole = {"runtime": {"page_size": 32}, "profile": asdict(ProfileRecord(**facts))}
    whole["profile"]["hash"] = content_hash(whole)
    return whole


def write(file: Path, whole: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")


def test_a_sound_profile_is_not_doubted(file: Path) -> None:
    write(file, content())
    composed = compose("serve")
    assert (composed.profile_path, composed.warnings) == (file, [])


@pytest.mark.parametrize("text", ["runtime: {page_size: 32}\n", "runtime: {}\nprofile: {kind: measured}\n"])
def test_a_profile_written_by_hand_is_not_doubted(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    assert compose("serve").warnings == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema_version": 99}, "has schema version 99, this sglk reads 1"),
        ({"chip": ProfileChip("kunlun")}, "was measured with chip 'kunlun', not 'cpu'"),
        ({"model": ProfileModel("other")}, "was measured with model 'other', not 'smollm2'"),
        ({"expires": "soon"}, "has expires='soon', which is not a date"),
        ({"valid_engine": "<0.0.1"}, f"holds for sglk <0.0.1, and this is {__version__}; measure it again: sglk tune"),
        ({"valid_engine": "latest"}, "has valid_engine='latest', which is no range of versions; write it as '>="),
        ({"kind": "simulated", "engine": "native on sim"}, "was simulated, not measured on the chip"),
        ({"engine": "sglang 0.5.18 on cpu"}, "was tuned for engine=sglang, not native"),
    ],
)
def test_a_profile_of_something_else_is_doubted(file: Path, changes: dict[str, Any], reason: str) -> None:
    write(file, content(**changes))
    (warning,) = compose("serve").warnings
    assert warning.startswith(f"profile {file} {reason}")


@pytest.mark.parametrize("valid", [engine_range(__version__), ">=0.0.1", ""])
def test_a_profile_of_this_version_is_not_doubted(file: Path, valid: str) -> None:
    write(file, content(valid_engine=valid))
    assert compose("serve").warnings == []


def test_a_profile_is_renewed_by_the_command_that_found_it(file: Path) -> None:
    write(file, content(expires="2020-01-01", command="sglk tune chip=cpu\n objective=goodput"))
    (warning,) = compose("serve").warnings
    assert warning.endswith("; measure it again: sglk tune chip=cpu objective=goodput")


def test_a_simulated_profile_is_good_enough_for_another_simulation(file: Path) -> None:
    write(file, content(kind="simulated", engine="native on sim"))
    assert compose("serve", ["backend=sim"]).warnings == []


def test_a_profile_expires_after_its_last_day(file: Path) -> None:
    write(file, content())
    config = compose("serve").config
    assert doubts(file, config, LAST_DAY) == []
    (warning,) = doubts(file, config, LAST_DAY + timedelta(days=1))
    assert f"expired on {LAST_DAY.isoformat()}; measure it again: sglk tune chip=cpu model=smollm2" in warning


def test_a_changed_profile_is_doubted(file: Path) -> None:
    whole = content()
    whole["runtime"]["page_size"] = 64
    write(file, whole)
    (warning,) = compose("serve").warnings
    assert "was changed after it was measured" in warning


def test_doubts_are_printed_where_errors_go(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(file, content(model=ProfileModel("other")))
    assert main(["show", "--yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith(f"sglk: warning: profile {file} was measured with model 'other'")
    assert yaml.safe_load(printed.out)["runtime"]["page_size"] == 32
