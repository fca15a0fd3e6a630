"""What a server and its clients add to the steps of an engine, from what clients saw of a few small runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sglk.planner.calibration.record import ServingRecord
from sglk.planner.cost.calibrated import HostTime
from sglk.planner.cost.shape import StepShape

StepTime = Callable[[StepShape], float]


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Requests that decoded together all the time."""

    rows: int
    context: int
    """Of each of them, halfway."""
    gap_s: float
    """Mean time between two tokens of one request."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Requests that came one at a time to an idle server."""

    prompt: int
    ttft_s: float
    """Median."""


def serving_time(
    decodes: Sequence[DecodeRun], firsts: Sequence[FirstToken], chunk: int, step: StepTime
) -> ServingRecord:
    """Return what clients saw beyond the steps, which alone take `step`; prompts are computed in chunks of `chunk`.

    Gaps between tokens tell what is fixed and what each row adds, first tokens what a request and each token of its
    prompt add.
    """
    beyond = [run.gap_s - step(StepShape(decodes=(run.context,) * run.rows, logits=run.rows)) for run in decodes]
    fixed_s, row_s = _line([run.rows for run in decodes], beyond)
    waits = [first.ttft_s - _prefill_s(first.prompt, chunk, step) for first in firsts]
    request_s, prompt_token_s = _line([first.prompt for first in firsts], waits)
    # The first token's own step has its share of what every step has.
    arrival_s = max(0.0, request_s - fixed_s - row_s)
    return ServingRecord(HostTime(fixed_s, row_s, prompt_token_s), arrival_s)


def _line(counts: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the line of best fit, neither part below 0."""
    from scipy.optimize import nnls

    matrix = np.array([[1.0, float(count)] for count in counts])
    fixed, each = nnls(matrix, np.array(seconds))[0]
    return float(fixed), float(each)


def _prefill_s(prompt: int, chunk: int, step: StepTime) -> float:
    ends = [*range(chunk, prompt, chunk), prompt]
    starts = [0, *ends[:-1]]
    return sum(
        step(StepShape(((end - start, end),), logits=int(end == prompt)))
        for start, end in zip(starts, ends, strict=True)
    )
