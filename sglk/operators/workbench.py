"""The ops of a model on a chip, looked at one by one, as another process asks for it."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from sglk.backends.device_work import copy_flaw
from sglk.config.ops_schema import OpsConfig
from sglk.errors import SglkError
from sglk.operators.benchmark import time_op
from sglk.operators.cases import OPS
from sglk.operators.comparison import mismatch
from sglk.operators.device import open_device, where
from sglk.operators.listing import listed_ops
from sglk.operators.reproduction import Failure, write_script
from sglk.operators.results import CalledOp, ListedOp, TimedOp, Trial, Unmeasured
from sglk.operators.steps import ModelOp, model_ops, with_lengths
from sglk.operators.trials import Attempt, attempts


class Workbench:
    """One device, opened. Ops are named in tuples (none = all); what is planned has the same numbers in any process.

    Raises BackendError where the chip's backend or its device is absent, ConfigError and ModelLoadError where the
    deployment's words or the model's files are wrong.
    """

    def __init__(self, config: OpsConfig) -> None:
        self._backend = open_device(config)
        self._config = with_lengths(config)
        self._attempts = cache(self._planned_attempts)
        self._calls = cache(self._planned_calls)

    def facts(self) -> dict[str, Any]:
        """Return what the device is, and the calls that ops are tried with."""
        kind = "simulated" if self._backend.simulated else "measured"
        return {"kind": kind, "device": asdict(self._backend.device_info()), "ops": self._config.ops}

    def device_flaw(self) -> str | None:
        """Return what becomes of numbers that are copied to the device and back; None where it is as it should be."""
        try:
            return copy_flaw(self._backend)
        except SglkError as error:
            return str(error)

    def listed(self) -> list[ListedOp]:
        """Return who runs which op of the model, and why."""
        return listed_ops(self._config, self._backend)

    def trials(self, ops: tuple[str, ...]) -> list[Trial]:
        """Return what is to be tried."""
        return [attempt.trial for attempt in self._attempts(ops)]

    def problem(self, ops: tuple[str, ...], number: int) -> str | None:
        """Try one of `trials` and return what is wrong, or None."""
        attempt = self._attempts(ops)[number]
        return mismatch(attempt.case, attempt.implementation, self._backend)

    def script(self, ops: tuple[str, ...], number: int, problem: str) -> Path:
        """Write the script that shows the `problem` of one of `trials` again; RunError where it cannot be written."""
        attempt = self._attempts(ops)[number]
        failure = Failure(attempt.case, attempt.implementation, problem)
        return write_script(failure, self._backend, dict(self._config.backend.options), Path(self._config.ops.failures))

    def called(self, ops: tuple[str, ...]) -> list[CalledOp]:
        """Return what the steps of the model call."""
        return [self._called(each) for each in self._calls(ops)]

    def time(self, ops: tuple[str, ...], number: int) -> TimedOp | Unmeasured:
        """Time one of what is `called`."""
        return time_op(self._calls(ops)[number], self._config, self._backend)

    def _planned_attempts(self, ops: Sequence[str]) -> list[Attempt]:
        return attempts(self._config, self._backend, ops)

    def _planned_calls(self, ops: Sequence[str]) -> list[ModelOp]:
        found = model_ops(self._config, self._backend, where(self._config)).ops
        return [each for each in found if each.call is not None and (not ops or each.case.op in ops)]

    def _called(self, op: ModelOp) -> CalledOp:
        choice = self._backend.ops.select(OPS[op.case.op], **op.case.traits).choice
        return CalledOp(op.case.op, dict(op.case.shape), choice.provider, op.decode_calls, op.prefill_calls)
