"""Where the time of a model's steps goes, op by op, and how near each op comes to what the chip could do."""

import math
from typing import Any

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.config.ops_schema import OpsConfig
from sglk.config.schema import ChipConfig
from sglk.errors import CapacityError
from sglk.operators.calling import device_arguments
from sglk.operators.cases import OPS
from sglk.operators.comparison import raised
from sglk.operators.results import Limit, TimedOp, Timing, Unmeasured
from sglk.operators.room import lack_of_room
from sglk.operators.steps import ModelOp
from sglk.operators.timing import simulated_time, time_calls

COLD_BYTES = 256 * 2**20
"""Arguments are copied until all copies take so much, which no cache holds."""

MOST_COPIES = 16


def time_op(op: ModelOp, config: OpsConfig, backend: DeviceBackend) -> TimedOp | Unmeasured:
    """Time an op that a step calls, with the implementation that a model would run, or say why that cannot be."""
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
