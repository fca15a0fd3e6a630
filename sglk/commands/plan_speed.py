"""The estimated speed of a planned replica, as people read it."""

from rich.console import Console

from sglk.commands.terminal import plain_table
from sglk.planner.cost.model import Basis
from sglk.planner.speed import Speed


def print_speed(speed: Speed | str | None, screen: Console) -> None:
    """Print times and what they rest on, or why there are none."""
    if speed is None:
        return
    screen.print()
    if isinstance(speed, str):
        screen.print(f"no speed: {speed}", style="dim", highlight=False)
        return
    table = plain_table("estimated speed", "", "")
    table.add_row("first token", _time(speed.ttft_s), f"of a prompt of {speed.prompt} alone")
    table.add_row("each token", _time(speed.tpot_alone_s), f"of 1 request behind {speed.context}")
    if speed.requests > 1:
        table.add_row("", _time(speed.tpot_together_s), f"of {speed.requests} requests behind {speed.context}")
        table.add_row("", f"{speed.output_tokens_per_s:,.0f}/s", "all of them together")
    screen.print(table)
    for line in basis_lines(speed.basis):
        screen.print(line, style="dim", highlight=False)


def basis_lines(basis: Basis) -> list[str]:
    """Return what prices rest on and how far to trust them, a line for each fact."""
    if basis.kind == "roofline":
        said = [f"from peak figures of {basis.name}, never compared with a device; `sglk calibrate` measures one"]
    else:
        kind = "simulated" if basis.simulated else "measured"
        error = "" if basis.error is None else f", median error of a step {basis.error:.1%} in cross-validation"
        said = [f"from {basis.name}, {kind}{error}"]
    return said + [f"beware: {note}" for note in basis.notes]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
