"""A study as the `summary.json` in its folder tells it; the file's shape is the tuner's, met here by names alone."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sglk.errors import RunError
from sglk.typed_json import parse, structure

SUMMARY = "summary.json"
SCHEMA = "sglk.study/1"


@dataclass(frozen=True)
class Goal:
    """One figure of a record's summary and the way it should go."""

    metric: str
    direction: Literal["maximize", "minimize"]

    def __str__(self) -> str:
        return f"{self.direction}:{self.metric}"


@dataclass
class Trial:
    """One setting and what became of it."""

    number: int | None
    """null for a setting that still waits."""
    state: str
    """`COMPLETE`, `PRUNED`, `FAIL`, `RUNNING` or `WAITING`."""
    source: str
    """Who proposed it: `default`, the study sampler, `carried`, `control` or `retry`."""
    params: dict[str, Any]
    values: dict[str, float] = field(default_factory=dict)
    """Per goal; empty unless complete."""
    rank: int | None = None
    """Place by the study's own rule."""
    reason: str | None = None
    """Why it failed or was pruned."""
    record: str | None = None
    """Bench record, relative to the study's folder."""
    log: str | None = None


@dataclass
class Measurement:
    """One run of the closing comparison."""

    number: int
    """Trial whose setting was measured again."""
    record: str | None = None


@dataclass
class Closing:
    """The first of the ranking and the default, measured again in turns."""

    measurements: list[Measurement] = field(default_factory=list)
    verdict: str | None = None


@dataclass
class Study:
    """One study, without the records that its trials left."""

    study: str
    status: str
    kind: str
    chip: str
    model: str
    workload: str
    goals: list[Goal]
    trials: list[Trial]
    engine: str = "?"
    device: str | None = None
    objective: str = "?"
    slo: dict[str, float | None] = field(default_factory=dict)
    space: dict[str, list[Any]] = field(default_factory=dict)
    sampler: str = "?"
    seed: int = 0
    planned: int | None = None
    baseline: int | None = None
    """Number of the default configuration's trial."""
    winner: int | None = None
    """Number of the trial whose setting is kept: the default's where no other one beat it beyond noise."""
    rule: str = ""
    """How the study ranks, in words."""
    closing: Closing | None = None
    profile: str | None = None
    updated: str | None = None

    def trial(self, number: int | None) -> Trial | None:
        """Return the trial with that number."""
        return next((trial for trial in self.trials if trial.number == number and number is not None), None)


def read_study(path: Path) -> Study:
    """Read a `summary.json`; raises RunError for a damaged one or one of another version."""
    try:
        data = parse(path.read_text(encoding="utf-8"))
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"schema: expected {SCHEMA!r}, got {schema!r}")
        return structure(Study, data)
    except OSError as error:
        raise RunError(f"cannot read study {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{str(path)!r} is not a study summary: {error}") from error
