"""What is told of ops that a process of its own has looked at: plain values. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Step = Literal["decode", "prefill"]
STEPS: tuple[Step, ...] = ("decode", "prefill")
Limit = Literal["memory", "compute"]


@dataclass(frozen=True)
class ListedOp:
    """One op of a model at one shape class, and what runs it."""

    op: str
    traits: dict[str, Any]
    decode: list[dict[str, Any]]
    """`calls` in a decode step for each shape of the class; empty where the step has none."""
    prefill: list[dict[str, Any]]
    """The same in the prefill of a prompt."""
    provider: str
    """Whose implementation runs; `reference` = plain torch."""
    function: str
    distribution: str | None
    reason: str
    """Why this one: what was refused before it, and why."""
    fallback: bool
    """Whether the reference stands in for what the chip does not have."""


@dataclass(frozen=True)
class Trial:
    """One implementation in one case."""

    op: str
    shape: dict[str, Any]
    seed: int
    source: str
    """`matrix` for a case of everybody's, `model` for one of the model's own shape."""
    implementation: str
    """Its provider and function, for people."""
    offer: int
    """Place among the implementations of the op, the preferred one first."""
    skipped: str | None
    """Why it is not tried: the implementation is not used for such shapes, or memory is short; None = it is tried."""


@dataclass(frozen=True)
class Outcome:
    """What a trial came to."""

    trial: Trial
    problem: str | None
    """What is wrong; None = nothing, or skipped."""

    def facts(self) -> dict[str, Any]:
        """Return all that is known, in plain values."""
        trial = self.trial
        outcome = "skipped" if trial.skipped else "failed" if self.problem else "passed"
        where = {"op": trial.op, "implementation": trial.implementation, "source": trial.source}
        case = {"shape": dict(trial.shape), "seed": trial.seed}
        return {**where, **case, "outcome": outcome, "detail": trial.skipped or self.problem}


@dataclass(frozen=True)
class CalledOp:
    """One op at one shape that the steps of a model call."""

    op: str
    shape: dict[str, Any]
    provider: str
    decode_calls: int
    """In one decode step."""
    prefill_calls: int
    """In the prefill of one prompt, all its chunks together."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call."""

    best_s: float
    median_s: float
    blocks: int
    """Blocks of calls that were timed, each from one wait for the device to the next."""
    calls: int
    """Calls in each."""


@dataclass(frozen=True)
class TimedOp:
    """One op at one shape."""

    op: str
    shape: dict[str, Any]
    provider: str
    fallback: bool
    timing: Timing
    gb_s: float
    """Bytes that its work needs, per second of the median; 10^9 bytes/s."""
    tflops: float
    """Operations of its work, per second of the median; 10^12/s."""
    peak: float | None
    """Share of the speed that the chip's peak figures allow for this work; None where its file has none."""
    limit: Limit | None
    """What keeps the chip from doing it faster; None where its file does not say."""


@dataclass(frozen=True)
class Unmeasured:
    """An op at a shape that could not be timed."""

    op: str
    shape: dict[str, Any]
    reason: str
    lost: bool = False
    """Whether its process ended, or it did not come back."""


@dataclass(frozen=True)
class Share:
    """What a timed op means for one kind of step."""

    step: Step
    calls: int
    total_s: float
    share: float
    """Of the time of all ops of the step."""
    timed: TimedOp


def shares(step: Step, ops: Sequence[CalledOp], timed: Sequence[TimedOp | Unmeasured]) -> list[Share]:
    """Return the ops of a step, those that take most of its time first; `timed` are the results of `ops`."""
    calls = [each.decode_calls if step == "decode" else each.prefill_calls for each in ops]
    found = [(count, result) for count, result in zip(calls, timed, strict=True) if count]
    measured = [(count, result) for count, result in found if isinstance(result, TimedOp)]
    whole_s = sum(count * result.timing.median_s for count, result in measured)
    rows = [(count, count * result.timing.median_s, result) for count, result in measured]
    return [
        Share(step, count, total_s, total_s / whole_s, result)
        for count, total_s, result in sorted(rows, key=lambda row: -row[1])
    ]
