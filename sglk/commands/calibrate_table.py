"""What a calibration found, as people read it."""

import statistics
from collections.abc import Iterator

from sglk.backends.work import SCHEME_ARITHMETIC
from sglk.commands.terminal import console, plain_table
from sglk.config.schema import ChipConfig
from sglk.planner.calibration.entries import Way, prices_of
from sglk.planner.calibration.record import Entry, ServingRecord
from sglk.planner.calibration.steps import Measured
from sglk.planner.cost.shape import StepShape

_ROWS = (1, 8, 32)
_CONTEXT = 512

_RESTLESS = 0.1
"""Median spread of repeats, or error of predictions, above which a machine was busy with something else."""


def print_calibration(measured: Measured, way: Way, chip: ChipConfig) -> None:
    """Print some steps with their parts, what was reached of the chip's peak, and the errors of left-out steps."""
    screen, entry = console(), measured.entry
    screen.print(f"{entry.kind}: {entry.model} on {measured.machine.device}, {entry.quantization or entry.dtype}")
    screen.print()
    screen.print(_steps(entry, way))
    for line in _reached(entry, chip):
        screen.print(line, highlight=False)
    error = entry.error
    kinds = ", ".join(f"{kind} {share:.1%}" for kind, share in entry.error_by_kind.items())
    screen.print(
        f"\n{len(entry.points)} steps; cross-validated error of a step: median {error.median:.1%}, "
        f"p90 {error.p90:.1%}, worst {error.worst:.1%} ({kinds}); spread of repeats: median {_spread(entry):.1%}",
        highlight=False,
    )
    for line in doubts(entry):
        screen.print(f"beware: {line}", style="yellow", highlight=False)
    if entry.serving is not None:
        screen.print(_serving(entry.serving), highlight=False)


def _serving(serving: ServingRecord) -> str:
    host = serving.host
    error = "" if serving.error is None else f"; cross-validated error of a gap between tokens: {serving.error:.1%}"
    return (
        f"serving adds {_ms(host.step_s)} a step, {_ms(host.row_s)} a token of an answer, {_ms(serving.arrival_s)} a "
        f"request, {_ms(serving.arrival_token_s * 1000)} for 1000 tokens of its prompt{error}"
    )


def doubts(entry: Entry) -> Iterator[str]:
    """Yield why the prices are not worth much."""
    spread = _spread(entry)
    if all(point.repeats == 1 for point in entry.points):
        yield "each step was measured once; raise calibrate.time_s or calibrate.repeats"
    if max(spread, entry.error.median) > _RESTLESS:
        yield (
            f"repeats of one step differ by {spread:.0%} and predictions by {entry.error.median:.0%}; where something "
            "else was running, calibrate again"
        )


def _spread(entry: Entry) -> float:
    return statistics.median(point.spread for point in entry.points)


def _steps(entry: Entry, way: Way) -> object:
    table = plain_table("step", "ms", "parts, ms")
    prices = prices_of(entry, way)
    for name, shape in _examples(entry):
        parts = sorted(prices.parts(shape).items(), key=lambda part: -part[1])
        shown = ", ".join(f"{part} {seconds * 1000:.1f}" for part, seconds in parts if seconds > 5e-5)
        table.add_row(name, f"{prices.step_s(shape) * 1000:.1f}", shown)
    return table


def _reached(entry: Entry, chip: ChipConfig) -> Iterator[str]:
    """Yield the rates that prices come to, beside the peaks that the chip's file names."""
    per_byte = entry.prices.get("weight_bytes")
    stretches = [name for name in entry.prices if name.startswith("tokens_")]
    yield ""
    if per_byte:
        yield f"weights are read at {_share(1e-9 / per_byte, chip.bandwidth_gb_s, 'GB/s')}"
    if stretches:
        per_flop = entry.prices[max(stretches, key=lambda name: int(name.rpartition("_")[2]))]
        arithmetic = SCHEME_ARITHMETIC.get(entry.quantization or "", entry.dtype)
        yield f"products of many tokens reach {_share(1e-12 / per_flop, chip.peak_tflops.get(arithmetic), 'TFLOPS')}"


def _share(rate: float, peak: float | None, unit: str) -> str:
    shown = f"{rate:.3g}" if rate < 100 else f"{rate:,.0f}"
    return f"{shown} {unit}" + ("" if peak is None else f", {rate / peak:.0%} of the chip's {peak:g}")


def _examples(entry: Entry) -> list[tuple[str, StepShape]]:
    chunk = max((new for point in entry.points for new, _ in point.prefills), default=1)
    most = max((len(point.decodes) for point in entry.points), default=1)
    counts = sorted({min(rows, most) for rows in _ROWS} | {most})
    return [(f"prompt chunk of {chunk}", StepShape(((chunk, chunk),), logits=1))] + [
        (f"{rows} decoding behind {_CONTEXT}", StepShape(decodes=(_CONTEXT,) * rows, logits=rows)) for rows in counts
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
