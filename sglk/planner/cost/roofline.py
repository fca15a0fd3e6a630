"""A step's time from a chip's peak figures alone: what the simulated device takes, to the last digit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sglk.backends.schemes import LinearScheme
from sglk.backends.sim_chip import imagined
from sglk.backends.sim_rates import Efficiency, Link, Rates, link_of, rates_of
from sglk.config.groups import SIMULATED
from sglk.config.schema import ServeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.errors import ConfigError
from sglk.models.spec import ModelSpec
from sglk.planner.cost.attention import AttentionOp, Seen, attention_op, decode_seen, prefill_seen, windows_of
from sglk.planner.cost.exchanges import Links
from sglk.planner.cost.ops import OpLine, Part, StepOps, step_ops
from sglk.planner.cost.shape import StepShape

Parts = dict[Part, float]
"""Seconds."""

_Line = tuple[OpLine, int, float, float, float, float, float]
"""An op, its calls in a step; its operations and bytes, fixed and for each token; the operations a second."""


@dataclass(frozen=True)
class RooflinePrices:
    """Each op takes a launch and the longer of moving its bytes and calculating."""

    rates: Rates
    ops: StepOps
    attention: AttentionOp
    windows: Mapping[int | None, int]
    ranks: int
    _known: dict[tuple[str, int], Parts] = field(default_factory=dict, repr=False)
    _tables: dict[str, list[_Line]] = field(default_factory=dict, repr=False)
    _totals: dict[tuple[int, int, int], float] = field(default_factory=dict, repr=False)
    """Of all parts but attention, by tokens, lines of logits and rows that chance decides."""

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        dtype: str,
        kv_dtype: str,
        scheme: LinearScheme | None,
        ranks: int,
        rates: Rates,
        gathers: bool = False,
        head: LinearScheme | None = None,
    ) -> "RooflinePrices":
        """Return the prices of a model on `ranks` chips of those rates; `gathers` and `head` as in `step_ops`."""
        ops = step_ops(spec, dtype, kv_dtype, scheme, ranks, gathers, head)
        return cls(rates, ops, attention_op(spec, dtype, kv_dtype, ranks), windows_of(spec), ranks)

    def parts(self, shape: StepShape) -> Parts:
        """Return the seconds of each part of one step."""
        found = dict(self._of_count("trunk", shape.tokens))
        for name, count in (("head", shape.logits), ("drawing", shape.drawn)):
            if count:
                for part, seconds in self._of_count(name, count).items():
                    found[part] = found.get(part, 0.0) + seconds
        if shape.prefills:
            found["attention_prefill"] = self._attention_s(shape, prefill_seen)
        if shape.decodes:
            found["attention_decode"] = self._attention_s(shape, decode_seen)
        return found

    def step_s(self, shape: StepShape) -> float:
        """Return the seconds of one step."""
        # All but attention is that of many steps, and a simulation asks millions of times.
        key = shape.tokens, shape.logits, shape.drawn
        seconds = self._totals.get(key)
        if seconds is None:
            counts = zip(("trunk", "head", "drawing"), key, strict=True)
            seconds = sum(sum(self._of_count(name, count).values()) for name, count in counts if count)
            self._totals[key] = seconds
        if shape.prefills:
            seconds += self._attention_s(shape, prefill_seen)
        if shape.decodes:
            seconds += self._attention_s(shape, decode_seen)
        return seconds

    def _attention_s(self, shape: StepShape, seen_in: Callable[[StepShape, int | None], Seen]) -> float:
        rates, op, seconds = self.rates, self.attention, 0.0
        flops_per_s = rates.flops_in(op.dtype)
        for window, layers in self.windows.items():
            queries, pairs, tokens = seen_in(shape, window)
            moved = queries * op.query_bytes + tokens * op.token_bytes
            seconds += layers * (rates.launch_s + max(moved / rates.bytes_per_s, pairs * op.pair_flops / flops_per_s))
        return seconds

    def _of_count(self, name: str, count: int) -> Parts:
        """Return what depends on a number of tokens, lines or rows alone, which steps share."""
        key = name, count
        if key not in self._known:
            launch_s, bytes_per_s = self.rates.launch_s, self.rates.bytes_per_s
            found: Parts = {}
            total = 0
            # As `op_s` of each line's work, in a fifth of the time: long runs have thousands of numbers of tokens.
            for line, calls, flops, more_flops, moved, more_moved, flops_per_s in self._lines(name):
                bytes_ = line.at(count).bytes if line.experts else moved + count * more_moved
                busy_s = max(bytes_ / bytes_per_s, (flops + count * more_flops) / flops_per_s)
                found[line.part] = found.get(line.part, 0.0) + calls * (launch_s + busy_s - launch_s)
                total += calls
            fixed: Part = "layers" if name == "trunk" else "step"
            found[fixed] = total * launch_s
            if name == "trunk" and self.ops.exchanges:
                found["collectives"] = Links(self.rates.link, self.ranks).seconds(self.ops.exchanges, count)
            self._known[key] = found
        return self._known[key]

    def _lines(self, name: str) -> list[_Line]:
        if name not in self._tables:
            lines: dict[OpLine, int] = getattr(self.ops, name)
            self._tables[name] = [
                (line, calls, fixed.flops, each.flops, fixed.bytes, each.bytes, self.rates.flops_in(each.dtype))
                for line, calls in lines.items()
                for fixed, each in [(line.fixed, line.each)]
            ]
        return self._tables[name]


def chip_link(config: ServeConfig) -> Link | None:
    """Return the link that is assumed of the chip of `config`; None where its file states none."""
    chip = imagined(config.chip)[0] if config.backend.name == SIMULATED else config.chip
    return link_of(chip) if chip.interconnect_gb_s else None


def assumed_figures(config: ServeConfig) -> list[str]:
    """Return the figures that a simulated device imagines in place of those that its chip's file lacks, as typed."""
    if config.backend.name != SIMULATED:
        return []
    needed = ["bandwidth_gb_s", "peak_tflops", *["interconnect_gb_s"] * (ranks_of(config.runtime) > 1)]
    words = imagined(config.chip)[1]
    return [word for word in words if word.partition("=")[0].removeprefix("chip.") in needed]


def chip_rates(config: ServeConfig) -> Rates:
    """Return the rates that are assumed of the chip of `config`; raises ConfigError where its file lacks a figure.

    A simulated device imagines what its chip's file lacks, and takes its efficiencies as options.
    """
    chip, options = config.chip, config.backend.options
    if config.backend.name == SIMULATED:
        given = {
            "bandwidth": options.get("bandwidth_efficiency"),
            "compute": options.get("compute_efficiency"),
            "launch_us": options.get("launch_us"),
        }
        efficiency = Efficiency(**{name: float(value) for name, value in given.items() if value is not None})
        return rates_of(imagined(chip)[0], efficiency)
    missing = [name for name in ("bandwidth_gb_s", "peak_tflops") if not getattr(chip, name)]
    if ranks_of(config.runtime) > 1 and not chip.interconnect_gb_s:
        missing.append("interconnect_gb_s")
    if missing:
        raise ConfigError(
            f"chip {chip.name!r} states no {' and no '.join(missing)}, so no step can be priced; run `sglk calibrate "
            f"chip={chip.name}` on it, or write chip.{missing[0]}=..."
        )
    return rates_of(imagined(chip)[0], Efficiency())
