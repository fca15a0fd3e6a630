"""Where the time of a model's steps goes, op by op, and how near each op comes to what the chip could do."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.config.ops_schema import OpsConfig
from sglk.config.schema import ChipConfig
from sglk.errors import CapacityError
from sglk.operators.calling import device_arguments
from sglk.operators.cases import OPS
from sglk.operators.comparison import raised
from sglk.operators.room import lack_of_room
from sglk.operators.steps import ModelOp
from sglk.operators.timing import Timing, simulated_time, time_calls

COLD_BYTES = 256 * 2**20
"""Arguments are copied until all copies take so much, which no cache holds."""

MOST_COPIES = 16

Step = Literal["decode", "prefill"]
STEPS: tuple[Step, ...] = ("decode", "prefill")
Limit = Literal["memory", "compute"]


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


@dataclass(frozen=True)
class Share:
    """What a timed op means for one kind of step."""

    step: Step
    calls: int
    total_s: float
    share: float
    """Of the time of all ops of the step."""
    timed: TimedOp


def time_ops(ops: Sequence[ModelOp], config: OpsConfig, backend: DeviceBackend) -> Iterator[TimedOp | Unmeasured]:
    """Time each op that a step calls, with the implementation that a model would run."""
    return (_timed_if_it_fits(each, config, backend) for each in ops)


def shares(step: Step, ops: Sequence[ModelOp], timed: Sequence[TimedOp | Unmeasured]) -> list[Share]:
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


def _timed_if_it_fits(op: ModelOp, config: OpsConfig, backend: DeviceBackend) -> TimedOp | Unmeasured:
    obstacle = None if backend.simulated else lack_of_room(op)
    if obstacle is None:
        try:
            return _timed(op, config, backend)
        except CapacityError as error:
            obstacle = str(error)
        except KeyboardInterrupt:
            raise
        # A vendor's op may raise anything; the others can be timed.
        except BaseException as error:  # noqa: BLE001
            obstacle = f"{backend.ops.select(OPS[op.case.op], **op.case.traits).choice.provider} {raised(error)}"
    return Unmeasured(op.case.op, dict(op.case.shape), obstacle)


def _timed(op: ModelOp, config: OpsConfig, backend: DeviceBackend) -> TimedOp:
    assert op.call is not None, "an op that no step calls"
    bound = backend.ops.select(OPS[op.case.op], **op.case.traits)
    if backend.simulated:
        timing = simulated_time(bound.function, op.call.arguments, backend)
    else:
        chosen = Implementation(op.case.op, bound.choice.provider, bound.function, packing=bound.packing)
        timing = time_calls(bound.function, _copies(op, chosen, backend), backend, config.ops.time_s)
    work = op.call.work
    peak, limit = _of_peak(op, timing, config.chip)
    return TimedOp(
        op.case.op,
        dict(op.case.shape),
        bound.choice.provider,
        bound.choice.fallback,
        timing,
        work.bytes / timing.median_s / 1e9,
        work.flops / timing.median_s / 1e12,
        peak,
        limit,
    )


def _copies(op: ModelOp, chosen: Implementation[Any, Any], backend: DeviceBackend) -> list[list[Any]]:
    """Return the arguments on the device, as often as it takes to fill caches."""
    count = min(MOST_COPIES, max(1, math.ceil(COLD_BYTES / max(op.argument_bytes, 1))))
    arguments = op.case.arguments()
    return [device_arguments(chosen, arguments, backend) for _ in range(count)]


def _of_peak(op: ModelOp, timing: Timing, chip: ChipConfig) -> tuple[float | None, Limit | None]:
    """Return the share of the roofline (Williams et al. 2009) that was reached, and which part of it is the roof."""
    assert op.call is not None
    work, peak_tflops = op.call.work, chip.peak_tflops.get(op.call.work.dtype)
    moving_s = work.bytes / (chip.bandwidth_gb_s * 1e9) if chip.bandwidth_gb_s else None
    computing_s = work.flops / (peak_tflops * 1e12) if peak_tflops else None
    if moving_s is None or computing_s is None:
        known_s = moving_s if computing_s is None else computing_s
        return (None if known_s is None else known_s / timing.median_s), None
    return max(moving_s, computing_s) / timing.median_s, "memory" if moving_s >= computing_s else "compute"
