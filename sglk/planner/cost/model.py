"""The price of a step: what it takes, part by part, on one chip with one model.

model = cost_model(config)                  # of one replica; peak figures, or a calibration where one is given
seconds = model.step_s(StepShape.of(batch))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from sglk.config.schema import ServeConfig
from sglk.planner.cost.ops import Part
from sglk.planner.cost.roofline import RooflinePrices, chip_rates
from sglk.planner.cost.shape import StepShape
from sglk.planner.dtypes import compute_dtype, kv_dtype
from sglk.planner.plan import model_of


class Prices(Protocol):
    """Where the seconds of a step come from."""

    def parts(self, shape: StepShape) -> dict[Part, float]:
        """Return the seconds of each part that the step has."""

    def step_s(self, shape: StepShape) -> float:
        """Return the sum of the parts."""


@dataclass(frozen=True)
class Basis:
    """What prices rest on, and how far to trust them."""

    kind: Literal["roofline", "calibration"]
    name: str
    """Chip, or file of the calibration."""
    simulated: bool
    """Whether no real device was measured."""
    error: float | None = None
    """Median relative error of a step in cross-validation; None = never compared with a device."""
    notes: tuple[str, ...] = ()
    """Why it may not hold here, each one line."""


@dataclass(frozen=True)
class CostModel:
    """Seconds of engine steps, and of a request's way around them."""

    prices: Prices
    basis: Basis
    arrival_s: float = 0.0
    """From a client's request to the engine's queue: HTTP, tokenizing."""
    delivery_s: float = 0.0
    """From the end of a step to the client: text, HTTP."""

    def step_s(self, shape: StepShape) -> float:
        """Return the seconds from the beginning of one step to that of the next, while there is work."""
        return self.prices.step_s(shape)

    def parts(self, shape: StepShape) -> Mapping[Part, float]:
        """Return the seconds of each part of a step; their sum is `step_s`."""
        return self.prices.parts(shape)


def cost_model(config: ServeConfig) -> CostModel:
    """Return the prices of the model of one replica on its chip.

    Raises ConfigError for a chip without the figures, ModelLoadError for a model of which nothing is known.
    """
    model, runtime, chip = model_of(config), config.runtime, config.chip
    prices = RooflinePrices.of(
        model.spec,
        compute_dtype(runtime, chip),
        kv_dtype(runtime, chip),
        model.scheme(runtime.quantization),
        runtime.tp_size,
        chip_rates(config),
    )
    return CostModel(prices, Basis("roofline", chip.name, simulated=True))
