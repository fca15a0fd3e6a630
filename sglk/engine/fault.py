"""Where numbers of a step stopped being finite, and what to say of it. Needs no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sglk.engine.batch import NOT_FINITE, RowFailure

Cause = Literal["op", "overflow", "weights", "kv", "input"]
"""`op`: the implementation's own, for the reference stays finite. `overflow`: the reference does not either. `weights`,
`kv`, `input`: what the op was given was not finite: the model's weights, the KV of earlier steps, anything else."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The first op of a step whose result for a row was not finite."""

    place: int
    """How many ops the step ran before it."""
    op: str
    shape: str
    """Its shape class, in words."""
    provider: str
    cause: Cause

    def __str__(self) -> str:
        name = f"op {self.op} of {self.provider} ({self.shape})"
        if self.cause == "op":
            return f"{name} made NaN or infinity of finite numbers, of which the reference makes finite ones"
        if self.cause == "overflow":
            return f"the model's numbers outgrow their dtype at {name}, as they do in the reference"
        if self.cause == "weights":
            return f"the weights that {name} was given hold NaN or infinity"
        if self.cause == "kv":
            return f"keys or values of an earlier step hold NaN or infinity when {name} reads them"
        return f"{name} was given NaN or infinity that no op before it made"


ADVICE: dict[Cause, str] = {
    "op": "name it in backend.deny, or set backend.quarantine=true",
    "overflow": "try runtime.dtype=fp32",
    "weights": "fetch the checkpoint again, or try runtime.dtype=fp32",
    "kv": "try runtime.kv_cache_dtype=auto",
    "input": "check the sums over the devices of a model in parts",
}


def first_faults(traces: Iterable[Mapping[int, Fault]]) -> dict[int, Fault]:
    """Return per row the first fault of those that the ranks of a model found, which all run the same ops."""
    first: dict[int, Fault] = {}
    for trace in traces:
        for row, fault in trace.items():
            if row not in first or fault.place < first[row].place:
                first[row] = fault
    return first


def failure_of(fault: Fault | None, quarantined: bool) -> RowFailure:
    """Return what to tell the request of a row; `quarantined` = the op's implementation has been switched off."""
    if fault is None:
        return RowFailure(
            "the model's logits are not finite, but were when the step was computed again; suspect the device, or an "
            "op whose results depend on more than its arguments"
        )
    advice = "it is switched off from now on" if quarantined else ADVICE[fault.cause]
    return RowFailure(f"{NOT_FINITE.message.partition(';')[0]}: {fault}; {advice}")
