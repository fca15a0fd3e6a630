"""What a server and its clients add to the steps of an engine, from what clients saw of a few small runs.

A machine is not as fast at all times, and what serving adds to a step is less than that. So little here is the
difference of two times of different minutes: streamed answers are held against answers that come whole, in turns, and
the way of a request is that of one which is refused before any step.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sglk.planner.calibration.record import ServingPoint, ServingRecord
from sglk.planner.cost.calibrated import HostTime
from sglk.planner.cost.shape import StepShape

StepTime = Callable[[StepShape], float]
Line = tuple[float, float]
"""What is fixed, and what each one of a count adds."""


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Requests that decoded together all the time, streamed, and as many whose answers came whole."""

    rows: int
    context: int
    """Of each of them, halfway."""
    gap_s: float
    """Mean time between two tokens of one streamed answer."""
    streaming_s: float
    """How much longer a token took than where answers came whole, which may be below 0 by chance."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request to an idle server that was refused when all of it was read."""

    prompt: int
    seconds: float
    """From its sending to the answer."""


def serving_time(decodes: Sequence[DecodeRun], refusals: Sequence[Refusal], step: StepTime) -> ServingRecord:
    """Return what clients saw beyond the steps, which alone take `step`.

    Of equal runs the median counts. A fixed time and one for each row come from what streaming adds; the engine's own
    loop is what a single answer that comes whole takes beyond its steps. Refusals tell what a request and each token of
    its prompt take on the way.
    """
    loop_s = max(0.0, _median(run.gap_s - run.streaming_s - _decode_s(run, step) for run in decodes if run.rows == 1))
    points = [_point(rows, [run for run in decodes if run.rows == rows]) for rows in sorted({r.rows for r in decodes})]
    fixed_s, row_s = _streaming(points)
    arrival_s, token_s = _arrival(refusals)
    return ServingRecord(
        host=HostTime(loop_s + fixed_s, row_s),
        arrival_s=arrival_s,
        arrival_token_s=token_s,
        error=_error(points),
        points=points,
    )


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else 0.0


def _decode_s(run: DecodeRun, step: StepTime) -> float:
    return step(StepShape(decodes=(run.context,) * run.rows, logits=run.rows))


def _point(rows: int, runs: Sequence[DecodeRun]) -> ServingPoint:
    gap_s, streaming_s = _median(run.gap_s for run in runs), _median(run.streaming_s for run in runs)
    return ServingPoint(rows, gap_s, streaming_s, len(runs))


def _streaming(points: Sequence[ServingPoint]) -> Line:
    return _line([each.rows for each in points], [each.streaming_s for each in points], [each.gap_s for each in points])


def _error(points: Sequence[ServingPoint]) -> float | None:
    """Return the median error of a gap whose run was left out; None where two runs are all there is."""
    if len(points) < 3:
        return None
    errors = []
    for left_out in points:
        fixed_s, row_s = _streaming([each for each in points if each is not left_out])
        errors.append(abs(fixed_s + row_s * left_out.rows - left_out.streaming_s) / left_out.gap_s)
    return round(statistics.median(errors), 4)


def _arrival(refusals: Sequence[Refusal]) -> Line:
    prompts = sorted({each.prompt for each in refusals})
    times = [_median(each.seconds for each in refusals if each.prompt == prompt) for prompt in prompts]
    return _line(prompts, times, times)


def _line(counts: Sequence[int], seconds: Sequence[float], scales: Sequence[float]) -> Line:
    """Return the line with the least sum of squared errors, each as a share of its scale; neither part below 0.

    Of a single point all is fixed.
    """
    from scipy.optimize import nnls

    weights = 1 / np.array(scales)
    each = np.array(counts, float) if len(counts) > 1 else np.zeros(len(counts))
    matrix = np.stack([np.ones(len(counts)), each], axis=1)
    fixed, slope = nnls(matrix * weights[:, None], np.array(seconds) * weights)[0]
    return float(fixed), float(slope)
