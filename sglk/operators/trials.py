"""Every implementation of a backend against the reference: small cases of all kinds, and a model's own shapes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.config.ops_schema import OpsConfig
from sglk.operators.cases import OPS, OpCase, matrix
from sglk.operators.comparison import mismatch
from sglk.operators.device import where
from sglk.operators.provenance import function_name
from sglk.operators.room import lack_of_room
from sglk.operators.steps import model_ops


@dataclass(frozen=True)
class Trial:
    """One implementation in one case."""

    case: OpCase
    source: str
    """`matrix` for a case of everybody's, `model` for one of the model's own shape."""
    implementation: Implementation[Any, Any]
    skipped: str | None
    """Why it is not tried: the implementation is not used for such shapes, or memory is short; None = it is tried."""

    @property
    def name(self) -> str:
        """The implementation, for people."""
        return f"{self.implementation.provider}: {function_name(self.implementation.function)}"


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
        where = {"op": trial.case.op, "implementation": trial.name, "source": trial.source}
        case = {"shape": dict(trial.case.shape), "seed": trial.case.seed}
        return {**where, **case, "outcome": outcome, "detail": trial.skipped or self.problem}


def trials(config: OpsConfig, backend: DeviceBackend, ops: Sequence[str]) -> list[Trial]:
    """Return what is to be tried of the ops named (none = all).

    The model's own shapes are those of its decode step and of its prefill; a simulated backend, which has no values to
    compare, is spared them.
    """
    found = [] if backend.simulated else model_ops(config, backend, where(config)).ops
    own = [(each.case, lack_of_room(each)) for each in found]
    small = ((case, None) for case in matrix(backend.capabilities, config.ops.seed))
    return [
        trial
        for source, cases in (("matrix", small), ("model", own))
        for case, obstacle in cases
        if not ops or case.op in ops
        for trial in _trials(case, source, obstacle, backend)
    ]


def outcomes(tried: Iterable[Trial], backend: DeviceBackend) -> Iterator[Outcome]:
    """Try one after the other."""
    for trial in tried:
        problem = None if trial.skipped else mismatch(trial.case, trial.implementation, backend)
        yield Outcome(trial, problem)


def _trials(case: OpCase, source: str, obstacle: str | None, backend: DeviceBackend) -> Iterator[Trial]:
    for implementation in backend.ops.implementations(OPS[case.op]):
        skipped = backend.ops.refusal(implementation, case.traits) or obstacle
        yield Trial(case, source, implementation, skipped)
