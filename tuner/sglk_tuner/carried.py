"""What another study found, for this one to begin with: another chip's settings are a guess worth a first try."""

from pathlib import Path

from sglk.errors import ConfigError, RunError
from sglk_tuner.space import Params
from sglk_tuner.summary import StudySummary, read_summary


def other_study(start_from: str | None) -> StudySummary | None:
    """Return the study in the folder `search.start_from`; raises ConfigError where it is none, or has no result."""
    if start_from is None:
        return None
    try:
        summary = read_summary(Path(start_from))
    except RunError as error:
        raise ConfigError(f"search.start_from={start_from!r}: {error}; name the folder of a study") from error
    if not settings_of(summary):
        raise ConfigError(f"search.start_from={start_from!r}: no setting of study {summary.study!r} has completed")
    return summary


def settings_of(study: StudySummary | None) -> list[Params]:
    """Return the settings of a study that completed, the one that it keeps first and then by rank."""
    if study is None:
        return []
    ranked = [trial for trial in study.trials if trial.rank is not None]
    ranked.sort(key=lambda trial: (trial.number != study.winner, trial.rank))
    return [trial.params for trial in ranked]
