"""Every implementation of a backend against the reference: small cases of all kinds, and a model's own shapes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.config.schema import OpsConfig
from sglk.operators.cases import OPS, OpCase, matrix
from sglk.operators.comparison import mismatch
from sglk.operators.device import where
from sglk.operators.steps import model_ops

Source = Literal["matrix", "model"]


@dataclass(frozen=True)
class Trial:
    """One implementation in one case."""

    case: OpCase
    source: Source
    """Whether the case is one of everybody's or has the model's own shape."""
    implementation: Implementation[Any, Any]
    skipped: str | None
    """Why the implementation is not used for such shapes, and so not tried; None = it is tried."""


@dataclass(frozen=True)
class Outcome:
    """What a trial came to."""

    trial: Trial
    problem: str | None
    """What is wrong; None = nothing, or skipped."""


def trials(config: OpsConfig, backend: DeviceBackend, ops: Sequence[str]) -> list[Trial]:
    """Return what is to be tried of the ops named (none = all).

    The model's own shapes are those of its decode step and of its prefill; a simulated backend, which has no values to
    compare, is spared them.
    """
    cases: list[tuple[OpCase, Source]] = [(case, "matrix") for case in matrix(backend.capabilities, config.ops.seed)]
    if not backend.simulated:
        cases += [(each.case, "model") for each in model_ops(config, backend, where(config)).ops]
    wanted = [(case, source) for case, source in cases if not ops or case.op in ops]
    return [trial for case, source in wanted for trial in _trials(case, source, backend)]


def outcomes(tried: Iterable[Trial], backend: DeviceBackend) -> Iterator[Outcome]:
    """Try one after the other."""
    for trial in tried:
        problem = None if trial.skipped else mismatch(trial.case, trial.implementation, backend)
        yield Outcome(trial, problem)


def _trials(case: OpCase, source: Source, backend: DeviceBackend) -> Iterator[Trial]:
    for implementation in backend.ops.implementations(OPS[case.op]):
        yield Trial(case, source, implementation, backend.ops.refusal(implementation, case.traits))
