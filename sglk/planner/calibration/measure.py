"""What steps take on a device: each shape several times, in turns, by the runner that serves them."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglk.engine.batch import Batch, RowFailure, Runner
from sglk.errors import RunError
from sglk.planner.calibration.batches import Pool
from sglk.planner.calibration.fitted import Point
from sglk.planner.cost.shape import StepShape

Clock = Callable[[], float]
OnStep = Callable[[int, int], None]
"""Called with the number of steps taken so far, and of all that are planned."""

_SEED = 0

_FILL_CHUNK = 512

_SHORT_S, _MOST_TIMES = 0.1, 5
"""A round takes shorter steps several times, up to so long together: a bad moment is a larger share of them."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure."""

    repeats: int
    """Rounds that count; one more goes before them."""
    longest_step_s: float
    """Where a step takes longer, the larger ones of its family are left out."""
    time_s: float
    """No round begins later."""


def measure_steps(
    runner: Runner,
    families: Sequence[Sequence[StepShape]],
    pool: Pool,
    effort: Effort,
    clock: Clock = time.perf_counter,
    on_step: OnStep = lambda done, total: None,
) -> list[Point]:
    """Return the median time of each shape that is not too long; `pool` is allocated, and nobody else uses it.

    The first round, which may compile kernels, only shows which shapes are too long. In the others all shapes come in
    an order of their own, so that no shape has all of a machine's bad moments. Raises RunError when a step fails.
    """
    began = time.perf_counter()
    _fill(runner, pool)
    shapes = _affordable(runner, families, pool, effort, clock, on_step)
    tried = len(shapes)
    times: dict[StepShape, list[float]] = {shape: [] for shape in shapes}
    order, draw = [shape for shape, seconds in shapes.items() for _ in range(_times(seconds))], random.Random(_SEED)
    for round_ in range(effort.repeats):
        if round_ and time.perf_counter() - began > effort.time_s:
            break
        draw.shuffle(order)
        for done, shape in enumerate(order, tried + round_ * len(order) + 1):
            times[shape].append(_time(runner, pool.batch(shape), clock))
            on_step(done, tried + effort.repeats * len(order))
    return [_point(shape, seconds) for shape, seconds in times.items()]


def _fill(runner: Runner, pool: Pool) -> None:
    """Write the whole KV pool: directly where it is at hand, else by prompts, which takes longer."""
    fill: Callable[[], None] | None = getattr(getattr(runner, "pool", None), "fill", None)
    if fill is not None:
        fill()
        return
    for batch in pool.filling(_FILL_CHUNK):
        runner.launch(batch)()


def _affordable(
    runner: Runner,
    families: Sequence[Sequence[StepShape]],
    pool: Pool,
    effort: Effort,
    clock: Clock,
    on_step: OnStep,
) -> dict[StepShape, float]:
    """Return the shapes that are not too long, and what their first steps took."""
    kept: dict[StepShape, float] = {}
    total = sum(map(len, families))
    for family in families:
        for shape in family:
            seconds = _time(runner, pool.batch(shape), clock)
            kept[shape] = seconds
            on_step(len(kept), total * (1 + effort.repeats))
            if seconds > effort.longest_step_s:
                break
    return kept


def _times(seconds: float) -> int:
    """Return how often a round takes a step that lasts so long."""
    return max(1, min(_MOST_TIMES, int(_SHORT_S / seconds))) if seconds else 1


def _time(runner: Runner, batch: Batch, clock: Clock) -> float:
    began = clock()
    results = runner.launch(batch)()
    seconds = clock() - began
    for result in results:
        if isinstance(result, RowFailure):
            raise RunError(f"a step of {len(batch.rows)} rows failed: {result.message}")
    return seconds


def _point(shape: StepShape, seconds: Sequence[float]) -> Point:
    median = statistics.median(seconds)
    quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [median, median, median]
    spread = (quartiles[2] - quartiles[0]) / 2 / median if median else 0.0
    return Point(shape, median, round(spread, 4), len(seconds))
