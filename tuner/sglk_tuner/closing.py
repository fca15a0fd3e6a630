"""The end of a study: the setting that the rule picks meets the default once more, in turns, before it may win."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from sglk.bench.record import Record
from sglk.config.profile_doubts import today
from sglk.errors import RunError
from sglk_tuner.choice import complete, ranking, unmet_goal
from sglk_tuner.gain import Comparison, Gain, Values, compare
from sglk_tuner.outcome import Outcome
from sglk_tuner.profile import is_outdated
from sglk_tuner.space import Params
from sglk_tuner.study import Study
from sglk_tuner.summary import TrialSummary

MeasureAgain = Callable[[Params, str], Outcome]
"""Measure one setting and keep the record under a name in the study's folder."""


@dataclass
class Closing:
    """What the comparison said; `closing` of the study's summary."""

    default: int
    winner: int
    """The challenger: what the rule picks. It wins only if `accepted`."""
    accepted: bool
    verdict: str
    repeats: int = 0
    measurements: list[dict[str, Any]] = field(default_factory=list)
    gain: dict[str, Any] = field(default_factory=dict)
    beyond_noise: bool | None = None
    unreliable: list[int] = field(default_factory=list)
    """Trials that the rule picked before and that failed when measured again."""

    @property
    def chosen(self) -> int:
        """The trial whose setting goes into the profile."""
        return self.winner if self.accepted else self.default

    def records(self, number: int) -> list[str]:
        """Return the record files of a trial's measurements in this comparison."""
        return [entry["record"] for entry in self.measurements if entry["number"] == number and entry["values"]]


def records_of(study: Study, closing: Closing, trial: TrialSummary) -> list[Record]:
    """Return the measurements of a trial's setting that count in the end: those of the comparison, or its own."""
    assert trial.number is not None
    files = closing.records(trial.number) or [str(trial.record)]
    return [study.record(file) for file in files]


def close(study: Study, again: MeasureAgain, repeats: int, note: Callable[[str], None]) -> Closing:
    """Return the closing comparison of a study, measured now unless the storage has it already.

    One whose profile would have expired is measured anew, with a note of it. Raises RunError when no setting completed,
    or none meets the objective's limits.
    """
    stored = study.read("closing")
    known = Closing(**stored) if stored else None
    doubt = None if known is None else _doubt(study, known)
    if doubt is not None:
        note(f"what the study found {doubt} and is measured again")
    unreliable = list(known.unreliable) if known else []
    while True:
        trials = study.trials()
        order = ranking(study.goals, [trial for trial in trials if trial.number not in unreliable], study.default)
        if not order:
            raise RunError(
                f"no setting of study {study.name!r} completed; see the reasons above and the logs in {study.folder}"
            )
        unmet = unmet_goal(study.goals, trials)
        if unmet is not None:
            raise RunError(
                f"no setting of study {study.name!r} meets the limits: {unmet.metric} is 0 for all "
                f"{len(complete(trials))} that were tried; loosen objective.slo or search other settings"
            )
        baseline = next(trial for trial in reversed(trials) if trial.params == study.default)
        if (
            known
            and doubt is None
            and (known.default, known.winner, known.repeats) == (baseline.number, order[0].number, repeats)
        ):
            return known
        closing = _contest(study, baseline, order, again, repeats)
        if closing is not None:
            closing.unreliable = unreliable
            if unreliable:
                names = ", ".join(f"trial {number}" for number in unreliable)
                closing.verdict += f"; {names} ranked higher but failed when measured again"
            study.write("closing", asdict(closing))
            return closing
        assert order[0].number is not None
        unreliable.append(order[0].number)


def _contest(
    study: Study, baseline: TrialSummary, order: list[TrialSummary], again: MeasureAgain, repeats: int
) -> Closing | None:
    """Compare the first of `order` with the default; None when it fails on the way.

    Where there is nothing to compare, its trial stands for it as long as a profile of it would be valid.
    """
    challenger = order[0]
    assert baseline.number is not None
    assert challenger.number is not None
    closing = Closing(baseline.number, challenger.number, accepted=True, verdict="", repeats=repeats)
    if challenger.number == baseline.number:
        others = f"is the best of {len(order)} settings" if len(order) > 1 else "is the only setting that completed"
        closing.verdict = f"the default configuration {others}"
    elif baseline.state != "COMPLETE":
        closing.verdict = f"trial {challenger.number} wins; the default configuration failed ({baseline.reason})"
    if closing.verdict:
        outdated = is_outdated([study.record(str(challenger.record))], today())
        turns = range(1, repeats + 1) if outdated else ()
        lives = all(_repeat(closing, study, challenger, turn, again) is not None for turn in turns)
        return closing if lives else None
    pairs: list[tuple[Values, Values]] = [(baseline.values, challenger.values)]
    for turn in range(1, repeats + 1):
        default, other = (_repeat(closing, study, trial, turn, again) for trial in (baseline, challenger))
        if other is None:
            return None
        if default is not None:
            pairs.append((default, other))
    _judge(closing, compare(study.goals, [pair[0] for pair in pairs], [pair[1] for pair in pairs]))
    return closing


def _doubt(study: Study, closing: Closing) -> str | None:
    """Return why it has to be measured again, None = it holds.

    A session that was killed may have replaced some of its records, or all of them, and not written down what it found.
    """
    entries = [entry for entry in closing.measurements if entry["values"]]
    records = [study.record(str(entry["record"])) for entry in entries]
    pairs = zip(entries, records, strict=True)
    if any(not entry["values"].items() <= record.summary.items() for entry, record in pairs):
        return "was being measured again when that was stopped,"
    outdated = is_outdated(records or [study.record(str(study.trials()[closing.chosen].record))], today())
    return "has expired" if outdated else None


def _repeat(closing: Closing, study: Study, trial: TrialSummary, turn: int, again: MeasureAgain) -> Values | None:
    """Measure a trial's setting once more and note it in `closing`; None when it fails."""
    assert trial.number is not None
    outcome = again(trial.params, f"closing/{trial.number:03d}-{turn}")
    entry = _entry(study, trial.number, outcome)
    closing.measurements.append(entry)
    return entry["values"] or None


def _entry(study: Study, number: int, outcome: Outcome) -> dict[str, Any]:
    metrics = [goal.metric for goal in study.goals]
    values = dict(zip(metrics, outcome.values, strict=True)) if outcome.state == "COMPLETE" else {}
    return {"number": number, "values": values, "record": outcome.record, "reason": outcome.reason}


def _judge(closing: Closing, comparison: Comparison) -> None:
    closing.gain = {metric: asdict(gain) for metric, gain in comparison.gains.items()}
    closing.beyond_noise = comparison.beyond_noise
    closing.accepted = comparison.beyond_noise is not False
    figures = ", ".join(f"{metric} {_words(gain)}" for metric, gain in comparison.gains.items())
    if comparison.beyond_noise is None:
        closing.verdict = f"trial {closing.winner} wins, but could not be compared with the default: {figures}"
    elif closing.accepted:
        closing.verdict = f"trial {closing.winner} beats the default: {figures}"
    else:
        closing.verdict = (
            f"trial {closing.winner} looked best but does not beat the default beyond noise: {figures}; "
            "the default configuration stays"
        )


def _words(gain: Gain) -> str:
    if gain.ratio is None:
        return f"without a ratio ({gain.method})"
    interval = f", {gain.low:.2f} to {gain.high:.2f}" if gain.low is not None and gain.high is not None else ""
    return f"{gain.ratio:.2f} times as good ({gain.pairs} pair{'' if gain.pairs == 1 else 's'}{interval})"
