"""The price of a step: what it takes, part by part, on one chip with one model.

model = cost_model(config)                  # of one replica: a calibration where one is found, else peak figures
seconds = model.step_s(StepShape.of(batch, page_size))
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sglk.backends.sim_rates import Rates
from sglk.config.schema import ServeConfig
from sglk.errors import ConfigError
from sglk.planner.calibration.entries import Way, prices_of
from sglk.planner.calibration.find import AUTO, Found, find_calibration
from sglk.planner.calibration.record import ServingRecord
from sglk.planner.cost.calibrated import HostTime
from sglk.planner.cost.ops import Part
from sglk.planner.cost.roofline import RooflinePrices, assumed_figures, chip_rates
from sglk.planner.cost.shape import StepShape
from sglk.planner.model import model_of

_PRODUCTS: tuple[Part, ...] = ("linear", "moe")


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
    arrival_token_s: float = 0.0
    """For each token of its prompt."""
    delivery_s: float = 0.0
    """From the end of a step to the client: text, HTTP."""
    host: HostTime = field(default_factory=HostTime)
    """Part of a step that is the host's around it."""

    def step_s(self, shape: StepShape) -> float:
        """Return the seconds from the beginning of one step to that of the next, while there is work."""
        return self.prices.step_s(shape)

    def parts(self, shape: StepShape) -> Mapping[Part, float]:
        """Return the seconds of each part of a step; their sum is `step_s`."""
        return self.prices.parts(shape)


def cost_model(config: ServeConfig, calibration: str = AUTO) -> CostModel:
    """Return the prices of the model of one replica on its chip.

    `calibration` is `auto` (the best that is found, else peak figures), `none` or the path of a file. Raises
    ConfigError for a chip without the figures, a file that does not fit and latent attention, ModelLoadError for a
    model of which nothing is known.
    """
    model = model_of(config)
    if model.spec.latent is not None:
        raise ConfigError(
            f"model {config.model.name!r} has latent attention, whose steps have no price; `sglk bench` measures a "
            "server that has it"
        )
    way = Way.of(config)
    search = find_calibration(config.chip.name, way, calibration)
    if search.found is not None:
        return _calibrated(way, search.found)
    scheme, rates = model.scheme(config.runtime.quantization), _rates(config, search.passed_over)
    kinds = way.dtype, way.kv_cache_dtype, scheme
    prices = RooflinePrices.of(model.spec, *kinds, way.tp_size, rates, way.gathers, model.head(scheme))
    basis = Basis("roofline", config.chip.name, True, notes=(*search.passed_over, *_guesses(config, prices)))
    return CostModel(prices, basis)


def _guesses(config: ServeConfig, prices: RooflinePrices) -> Iterator[str]:
    """Yield which peak figures nobody states."""
    assumed = assumed_figures(config)
    if assumed:
        yield f"assumed, as the chip's file does not say: {', '.join(assumed)}"
    dtypes = {line.each.dtype: None for line in prices.ops.trunk if line.part in _PRODUCTS}
    for dtype in dtypes:
        if dtype not in prices.rates.flops_per_s:
            yield f"chip.peak_tflops has none for products in {dtype}; its lowest rate is taken"


def _rates(config: ServeConfig, passed_over: tuple[str, ...]) -> Rates:
    try:
        return chip_rates(config)
    except ConfigError as error:
        raise ConfigError("; ".join((str(error), *passed_over))) from error


def _calibrated(way: Way, found: Found) -> CostModel:
    entry = found.entry
    serving = entry.serving or ServingRecord()
    basis = Basis("calibration", str(found.path), entry.kind == "simulated", entry.error.median, found.notes)
    times = serving.arrival_s, serving.arrival_token_s, serving.delivery_s
    return CostModel(prices_of(entry, way), basis, *times, serving.host)
