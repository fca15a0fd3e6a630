"""What became of one trial."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a trial, as the study stores it."""

    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    values: tuple[float, ...] = ()
    """One per goal for COMPLETE, else empty."""
    reason: str | None = None
    """Why the trial failed or was pruned."""
    record: str | None = None
    """Bench record, relative to the study's folder."""
    log: str | None = None
    """Engine log, relative to the study's folder."""
    warnings: tuple[str, ...] = ()
    """What a reader should know before believing the values."""
    never_started: bool = False
    """No server has become ready yet, in this trial or before."""
    lost: bool = False
    """The trial ended by no fault of its setting (tuner killed or interrupted): the point runs once more."""
