"""A step's time from measured prices: what a calibration found each quantity of a step to cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglk.planner.cost.exchanges import Links
from sglk.planner.cost.features import Features, Quantities, part_of
from sglk.planner.cost.ops import Part
from sglk.planner.cost.shape import StepShape


@dataclass(frozen=True)
class HostTime:
    """What the host does around each step of a loaded server, in seconds: scheduling, answers, clients' connections."""

    step_s: float = 0.0
    row_s: float = 0.0
    """For each row that gets a token."""

    def of(self, shape: StepShape) -> float:
        """Return the seconds beside one step."""
        return self.step_s + shape.logits * self.row_s


@dataclass(frozen=True)
class CalibratedPrices:
    """Each quantity has its price; prices are seconds per operation, byte or call."""

    features: Features
    prices: Mapping[str, float]
    host: HostTime
    links: Links | None = None
    """What ranks meet over, where the time of that was not measured; None = it has a price, or there is one rank."""
    _known: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)

    def step_s(self, shape: StepShape) -> float:
        """Return the seconds of one step."""
        # Times that steps share are remembered, for a simulation asks millions of times.
        seconds = self._once("tokens", shape.tokens) + self._once("lines", shape.logits) + self.host.of(shape)
        if shape.drawn:
            seconds += self._once("drawn", shape.drawn)
        if shape.prefills:
            seconds += self._cost(self.features.of_prefills(shape))
        if shape.decodes:
            seconds += self._cost(self.features.of_decodes(shape))
        return seconds

    def parts(self, shape: StepShape) -> dict[Part, float]:
        """Return the seconds of each part."""
        found: dict[Part, float] = {}
        for name, value in self.features.quantities(shape).items():
            part = part_of(name)
            found[part] = found.get(part, 0.0) + value * self.prices.get(name, 0.0)
        if self.links is not None:
            found["collectives"] = self._meetings_s(shape.tokens)
        return found | {"host": self.host.of(shape)}

    def _once(self, kind: str, count: int) -> float:
        key = kind, count
        seconds = self._known.get(key)
        if seconds is None:
            quantities: Quantities = getattr(self.features, f"of_{kind}")(count)
            seconds = self._cost(quantities)
            if kind == "tokens":
                seconds += self._meetings_s(count)
            self._known[key] = seconds
        return seconds

    def _meetings_s(self, tokens: int) -> float:
        return 0.0 if self.links is None else self.links.seconds(self.features.ops.exchanges, tokens)

    def _cost(self, quantities: Quantities) -> float:
        prices = self.prices
        return sum([value * prices.get(name, 0.0) for name, value in quantities.items()])
