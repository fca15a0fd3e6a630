"""What a calibration found, as people read it."""

from sglk.commands.terminal import console, plain_table
from sglk.planner.calibration.entries import Way, prices_of
from sglk.planner.calibration.record import Entry
from sglk.planner.calibration.steps import Measured
from sglk.planner.cost.shape import StepShape

_ROWS = (1, 8, 32)
_CONTEXT = 512

_RESTLESS = 0.1
"""Median spread of repeats above which a machine was busy with something else."""


def print_calibration(measured: Measured, way: Way) -> None:
    """Print some steps with their parts, and the errors of left-out ones."""
    screen, entry = console(), measured.entry
    screen.print(f"{entry.kind}: {entry.model} on {measured.machine.device}, {entry.quantization or entry.dtype}")
    screen.print()
    screen.print(_steps(entry, way))
    error = entry.error
    kinds = ", ".join(f"{kind} {share:.1%}" for kind, share in entry.error_by_kind.items())
    screen.print(
        f"\n{len(entry.points)} steps; cross-validated error of a step: median {error.median:.1%}, "
        f"p90 {error.p90:.1%}, worst {error.worst:.1%} ({kinds}); spread of repeats: median {_spread(measured):.1%}",
        highlight=False,
    )
    if (spread := _spread(measured)) > _RESTLESS:
        screen.print(
            f"beware: repeats of one step differ by {spread:.0%}; something else was running, so calibrate again",
            style="yellow",
            highlight=False,
        )
    if entry.serving is not None:
        host = entry.serving.host
        screen.print(
            f"serving adds {_ms(host.step_s)} a step, {_ms(host.row_s)} a token of an answer, "
            f"{_ms(host.prompt_token_s * 1000)} for 1000 prompt tokens, {_ms(entry.serving.arrival_s)} a request",
            highlight=False,
        )


def _steps(entry: Entry, way: Way) -> object:
    table = plain_table("step", "ms", "parts, ms")
    prices = prices_of(entry, way)
    for name, shape in _examples(entry):
        parts = sorted(prices.parts(shape).items(), key=lambda part: -part[1])
        shown = ", ".join(f"{part} {seconds * 1000:.1f}" for part, seconds in parts if seconds > 5e-5)
        table.add_row(name, f"{prices.step_s(shape) * 1000:.1f}", shown)
    return table


def _examples(entry: Entry) -> list[tuple[str, StepShape]]:
    chunk = max((new for point in entry.points for new, _ in point.prefills), default=1)
    most = max((len(point.decodes) for point in entry.points), default=1)
    counts = sorted({min(rows, most) for rows in _ROWS} | {most})
    return [(f"prompt chunk of {chunk}", StepShape(((chunk, chunk),), logits=1))] + [
        (f"{rows} decoding behind {_CONTEXT}", StepShape(decodes=(_CONTEXT,) * rows, logits=rows)) for rows in counts
    ]


def _spread(measured: Measured) -> float:
    spreads = sorted(point.spread for point in measured.points)
    return spreads[len(spreads) // 2]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
