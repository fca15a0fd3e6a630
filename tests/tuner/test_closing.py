"""The closing comparison, on a real study whose measurements are scripted."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from sglk_tuner.closing import Closing, close
from sglk_tuner.identity import identity_of
from sglk_tuner.outcome import Outcome
from sglk_tuner.space import Params, build_space, params_of
from sglk_tuner.study import Study, open_study

from sglk.bench.machine import describe_tool
from sglk.config.tune_schema import StudyConfig
from tests.reports.folders import record
from tests.tuner.studies import FASTER, WINDOW, config_of

DEFAULT, OTHER = 16, 4
NOW = datetime.now(timezone.utc).isoformat(timespec="seconds")
FAILS = Outcome("FAIL", reason="out of memory")


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    """A study whose setting of OTHER looks twice as good as its default."""
    config = config_of({WINDOW: [OTHER]})
    config.runtime.max_running_requests = DEFAULT
    config.study = StudyConfig(name="s", directory=str(tmp_path))
    space, goals = build_space(config), (FASTER,)
    default = params_of(config, space.candidates)
    with open_study(config, space, goals, default, identity_of(config, space, goals, default)) as made:
        for window, value in ((DEFAULT, 100.0), (OTHER, 200.0)):
            made.finish(made.begin({WINDOW: window}, "grid"), Outcome("COMPLETE", (value,), record="any.json"))
        yield made


def closed(study: Study, measured: dict[int, list[float | None]]) -> Closing:
    """Close `study`; each window gives its values in turn, None = the measurement fails."""
    return close(study, scripted(measured), len(measured[DEFAULT]), lambda note: None)


def scripted(measured: dict[int, list[float | None]]) -> Callable[[Params, str], Outcome]:
    rest = {window: iter(values) for window, values in measured.items()}

    def again(params: Params, name: str) -> Outcome:
        value = next(rest[params[WINDOW]])
        return FAILS if value is None else Outcome("COMPLETE", (value,), record=f"{name}.json")

    return again


def test_what_was_measured_in_one_turn_is_compared_and_nothing_else(study: Study) -> None:
    """The machine is ten times as slow from turn to turn, and the default's second measurement fails."""
    closing = closed(study, {DEFAULT: [1000.0, None, 10.0], OTHER: [2000.0, 200.0, 20.0]})
    assert closing.gain["output_throughput"]["ratio"] == pytest.approx(2.0)
    assert closing.gain["output_throughput"]["pairs"] == 2
    assert closing.accepted


def test_a_challenger_that_comes_to_nothing_does_not_win(study: Study) -> None:
    closing = closed(study, {DEFAULT: [1.0, 1.0], OTHER: [0.0, 0.0]})
    assert not closing.accepted
    assert "does not beat the default" in closing.verdict


def recorded(study: Study, gain: float) -> Callable[[Params, str], Outcome]:
    """Return measurements that leave their records, OTHER `gain` times as good as the default."""

    def again(params: Params, name: str) -> Outcome:
        value = 100.0 * (gain if params[WINDOW] == OTHER else 1.0)
        made = replace(record(name), created=NOW, tool=describe_tool(), summary={FASTER.metric: value})
        made.save(study.folder / f"{name}.json")
        return Outcome("COMPLETE", (value,), record=f"{name}.json")

    return again


def test_a_renewal_that_was_killed_before_it_was_written_down_is_made_again(study: Study) -> None:
    """Its records are new, all of them, and what the books say is of the old ones."""
    notes: list[str] = []
    before = close(study, recorded(study, 2.0), 2, notes.append)
    assert close(study, recorded(study, 9.0), 2, notes.append) == before
    assert notes == []

    for entry in before.measurements:
        window = OTHER if entry["number"] == before.winner else DEFAULT
        recorded(study, 3.0)({WINDOW: window}, entry["record"].removesuffix(".json"))
    after = close(study, recorded(study, 4.0), 2, notes.append)
    assert notes == ["what the study found was being measured again when that was stopped, and is measured again"]
    assert after.gain["output_throughput"]["ratio"] == pytest.approx(4.0)
