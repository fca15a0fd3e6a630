"""Every implementation of a backend against the reference: small cases of all kinds, and a model's own shapes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.config.ops_schema import OpsConfig
from sglk.operators.cases import OPS, OpCase, matrix
from sglk.operators.device import where
from sglk.operators.provenance import function_name
from sglk.operators.results import Trial
from sglk.operators.room import lack_of_room
from sglk.operators.steps import model_ops


@dataclass(frozen=True)
class Attempt:
    """A trial, and what it takes to make it."""

    trial: Trial
    case: OpCase
    implementation: Implementation[Any, Any]


def attempts(config: OpsConfig, backend: DeviceBackend, ops: Sequence[str]) -> list[Attempt]:
    """Return what is to be tried of the ops named (none = all), the same at every call.

    The model's own shapes are those of its decode step and of its prefill; a simulated backend, which has no values to
    compare, is spared them.
    """
    found = [] if backend.simulated else model_ops(config, backend, where(config)).ops
    own = [(each.case, lack_of_room(each)) for each in found]
    small = ((case, None) for case in matrix(backend.capabilities, config.ops.seed))
    return [
        attempt
        for source, cases in (("matrix", small), ("model", own))
        for case, obstacle in cases
        if not ops or case.op in ops
        for attempt in _attempts(case, source, obstacle, backend)
    ]


def _attempts(case: OpCase, source: str, obstacle: str | None, backend: DeviceBackend) -> Iterator[Attempt]:
    for offer, implementation in enumerate(backend.ops.implementations(OPS[case.op])):
        skipped = backend.ops.refusal(implementation, case.traits) or obstacle
        name = f"{implementation.provider}: {function_name(implementation.function)}"
        trial = Trial(case.op, dict(case.shape), case.seed, source, name, offer, skipped)
        yield Attempt(trial, case, implementation)
