"""What another study found, for this one to begin with: another chip's settings are a guess worth a first try."""

from pathlib import Path

from sglk.errors import ConfigError, RunError
from sglk_tuner.space import Params
from sglk_tuner.summary import StudySummary, read_summary


def other_study(start_from: str | None, own: Path, notices: list[str]) -> StudySummary | None:
    """Return the study in the folder `search.start_from`.

    Where it is none, or has no result, raises ConfigError. The study in the folder `own` goes on without it, with a
    notice, once it has trials: its command also renews its profile, long after the other study may be gone.
    """
    if start_from is None:
        return None
    try:
        summary = read_summary(Path(start_from))
        if not settings_of(summary):
            raise RunError(f"no setting of study {summary.study!r} has completed within its limits")
    except RunError as error:
        problem = f"search.start_from={start_from!r}: {error}"
        if not _has_begun(own):
            raise ConfigError(f"{problem}; name the folder of a study with results") from error
        notices.append(f"{problem}; this study has begun and goes on without it")
        return None
    return summary


def _has_begun(folder: Path) -> bool:
    try:
        return any(trial.number is not None for trial in read_summary(folder).trials)
    except RunError:
        return False


def settings_of(study: StudySummary | None) -> list[Params]:
    """Return the settings of a study that completed whenever measured: the one that it keeps first, then by rank.

    Where no request of any setting kept the limits, nothing was kept, and the ranks say nothing.
    """
    if study is None or study.winner is None:
        return []
    failed_later = (study.closing or {}).get("unreliable", [])
    ranked = [trial for trial in study.trials if trial.rank is not None and trial.number not in failed_later]
    ranked.sort(key=lambda trial: (trial.number != study.winner, trial.rank))
    return [trial.params for trial in ranked]
