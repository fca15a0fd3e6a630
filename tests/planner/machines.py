"""Imaginary machines whose prices are known."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from sglk.config.compose import compose
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch
from sglk.planner.calibration.design import Reach, families
from sglk.planner.calibration.entries import Way
from sglk.planner.calibration.fitted import Point
from sglk.planner.cost.features import COARSE, Features
from sglk.planner.cost.shape import StepShape
from sglk.testing.scripted import ScriptedRunner

PRICES = {
    "layers": 40e-6,
    "weight_bytes": 1 / 40e9,
    "tokens_1": 1 / 60e9,
    "tokens_4": 1 / 100e9,
    "tokens_16": 1 / 200e9,
    "tokens_64": 1 / 200e9,
    "tokens_256": 1 / 180e9,
    "lines_1": 1 / 90e9,
    "lines_4": 1 / 120e9,
    "lines_16": 1 / 120e9,
    "sampling_bytes": 1 / 10e9,
    "drawing_bytes": 1 / 2e9,
    "prefill_pairs": 1 / 50e9,
    "prefill_masked": 1 / 40e9,
    "prefill_bytes": 1 / 5e9,
    "decode_rows": 5e-6,
    "decode_bytes": 1 / 8e9,
}
"""Of a small processor, whose products are slow with few tokens and quicker with many."""


@cache
def way() -> Way:
    """Return SmolLM2 on a processor."""
    return Way.of(compose("plan", ("chip=cpu", "model=smollm2", "profiles=none")).config)


def features(knots: tuple[int, ...] = COARSE) -> Features:
    """Return the quantities of SmolLM2's steps."""
    return replace(way().features, knots=tuple(knot for knot in knots if knot <= 256))


def seconds(shape: StepShape) -> float:
    """Return what a step takes on the machine of PRICES."""
    return sum(value * PRICES.get(name, 0.0) for name, value in features().quantities(shape).items())


def shapes() -> list[StepShape]:
    """Return what a calibration measures on a processor."""
    reach = Reach.of(RuntimeConfig(chunked_prefill_size=512, max_running_requests=16), 2048, 32768, 2048)
    return [shape for family in families(reach) for shape in family]


def measured(noise: float, seed: int = 1) -> list[Point]:
    """Return all of them with times that are off by up to `noise`."""
    draw = random.Random(seed)
    return [Point(shape, seconds(shape) * (1 + draw.uniform(-noise, noise)), noise, 5) for shape in shapes()]


@dataclass
class TimedRunner(ScriptedRunner):
    """A runner whose clock goes on by what each step takes."""

    step_s: Callable[[StepShape], float] = seconds
    now_s: float = 0.0
    taken: list[StepShape] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(vocab_size=512, context_length=4096, before_step=self._take)

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Make a pool whose slots may be read before they are written, as those of a device may."""
        super().allocate_kv(num_pages, page_size)
        self.page_size = page_size
        self._pages = [[(0, 0)] * page_size for _ in range(num_pages)]

    def _take(self, number: int, batch: Batch) -> None:
        self.taken.append(StepShape.of(batch, self.page_size))
        self.now_s += self.step_s(self.taken[-1])


def total(points: Sequence[Point]) -> float:
    """Return the seconds of all points together."""
    return sum(point.seconds for point in points)
