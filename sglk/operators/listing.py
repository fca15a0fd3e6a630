"""Who runs the ops of a model on a chip, and why."""

from typing import Any

from sglk.backends.base import DeviceBackend
from sglk.backends.constraints import Trait
from sglk.config.ops_schema import OpsConfig
from sglk.operators.cases import OPS
from sglk.operators.device import where
from sglk.operators.provenance import distribution_of, function_name
from sglk.operators.results import ListedOp
from sglk.operators.steps import ModelOp, model_ops


def listed_ops(config: OpsConfig, backend: DeviceBackend) -> list[ListedOp]:
    """Return every op that the model of `config` selects, in order of op and shape class."""
    found = model_ops(config, backend, where(config))
    return [_listed(choice.op, dict(choice.traits), found.ops, backend) for choice in found.classes]


def _listed(op: str, traits: dict[str, Trait], ops: list[ModelOp], backend: DeviceBackend) -> ListedOp:
    own = [each for each in ops if each.case.op == op and each.case.traits == traits]
    bound = backend.ops.select(OPS[op], **traits)
    choice = bound.choice
    return ListedOp(
        op,
        traits,
        [_calls(each, each.decode_calls) for each in own if each.decode_calls],
        [_calls(each, each.prefill_calls) for each in own if each.prefill_calls],
        choice.provider,
        function_name(bound.function),
        distribution_of(bound.function),
        choice.reason,
        choice.fallback,
    )


def _calls(op: ModelOp, calls: int) -> dict[str, Any]:
    beside = {name: value for name, value in op.case.shape.items() if name not in op.case.traits}
    return {"calls": calls, **beside}
