"""What a server and its clients add to the steps of an engine, from what clients saw of a few small runs.

A machine is not as fast at all times, and what serving adds to a step is less than that. So nothing here is the
difference of two times of different minutes: answers that come whole are held against the time that the engine says it
spent in their steps, streamed answers against whole ones, in turns, and the way of a request is that of one which is
refused before any step.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglk.planner.calibration.record import ServingPoint, ServingRecord
from sglk.planner.cost.calibrated import HostTime

Line = tuple[float, float]
"""What is fixed, and what each one of a count adds."""


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Requests that decoded together all the time, streamed, and as many whose answers came whole."""

    rows: int
    gap_s: float
    """Mean time between two tokens of one streamed answer."""
    streaming_s: float
    """How much longer a token took than where answers came whole, which may be below 0 by chance."""
    idle_s: float
    """Part of the time to the last whole answer in which the engine was in no step."""
    steps: int
    """That all whole answers together took."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request to an idle server that was refused when all of it was read."""

    prompt: int
    seconds: float
    """From its sending to the answer."""


def serving_time(decodes: Sequence[DecodeRun], refusals: Sequence[Refusal]) -> ServingRecord:
    """Return what clients saw beyond the steps.

    Of equal runs the median counts. A fixed time of a step and one for each row come from what streaming adds, and from
    what the engine's own loop takes between two steps: all that passes while whole answers are made, but for steps and
    the way of one request. Refusals tell what a request and each token of its prompt take on the way.
    """
    arrival_s, token_s = _arrival(refusals)
    counts = sorted({run.rows for run in decodes})
    points = [_point([run for run in decodes if run.rows == rows], arrival_s) for rows in counts]
    step_s, row_s = _added(points)
    return ServingRecord(
        host=HostTime(step_s, row_s),
        arrival_s=arrival_s,
        arrival_token_s=token_s,
        error=_error(points),
        points=points,
    )


def _point(runs: Sequence[DecodeRun], arrival_s: float) -> ServingPoint:
    loop_s = max(0.0, statistics.median((run.idle_s - arrival_s) / run.steps for run in runs))
    gap_s = statistics.median(run.gap_s for run in runs)
    streaming_s = statistics.median(run.streaming_s for run in runs)
    return ServingPoint(runs[0].rows, gap_s, streaming_s, len(runs), loop_s)


def _added(points: Sequence[ServingPoint]) -> Line:
    return _line([each.rows for each in points], [each.added_s for each in points], [each.gap_s for each in points])


def _error(points: Sequence[ServingPoint]) -> float | None:
    """Return the median error of a gap whose run was left out; None where two runs are all there is."""
    if len(points) < 3:
        return None
    errors = []
    for left_out in points:
        step_s, row_s = _added([each for each in points if each is not left_out])
        errors.append(abs(step_s + row_s * left_out.rows - left_out.added_s) / left_out.gap_s)
    return round(statistics.median(errors), 4)


def _arrival(refusals: Sequence[Refusal]) -> Line:
    prompts = sorted({each.prompt for each in refusals})
    times = [statistics.median(each.seconds for each in refusals if each.prompt == prompt) for prompt in prompts]
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
