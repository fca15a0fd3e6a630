"""Tables of `sglk ops`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from sglk.commands.terminal import plain_table
from sglk.config.ops_schema import OpsConfig
from sglk.config.schema import ChipConfig
from sglk.operators.results import ListedOp, Outcome, Share

_DOUBTFUL = ("claimed", "unverified")


def list_table(ops: Sequence[ListedOp]) -> Table:
    """Return a row for each shape class: how often it is called, what runs it and why."""
    table = plain_table("op", "shape class", "decode step", "prefill", "runs on", "why")
    for each in ops:
        source = f" ({each.distribution})" if each.distribution and not each.distribution.startswith("sglk ") else ""
        calls = (_calls(each.decode), _calls(each.prefill)) if each.decode or each.prefill else ("on request", "")
        row = (each.op, shape_text(each.traits), *calls)
        table.add_row(*row, f"{each.provider}{source}", each.reason, style="yellow" if each.fallback else None)
    return table


def test_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a row for each implementation, and one more for the first thing that is wrong with it."""
    table = plain_table("op", "implementation", "passed", "failed", "skipped", "first problem, or why skipped")
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.trial.op, outcome.trial.offer), []).append(outcome)
    for (op, _), own in groups.items():
        failed = [outcome for outcome in own if outcome.problem is not None]
        skipped = [outcome for outcome in own if outcome.trial.skipped is not None]
        remark = skipped[0].trial.skipped if skipped else ""
        if failed:
            remark = f"{shape_text(failed[0].trial.shape)}: {failed[0].problem}"
        counts = (len(own) - len(failed) - len(skipped), len(failed), len(skipped))
        style = "red" if failed else "dim" if not counts[0] else None
        table.add_row(op, own[0].trial.implementation, *map(str, counts), remark, style=style)
    return table


def time_tables(steps: Mapping[str, Sequence[Share]], config: OpsConfig, *, whole: bool) -> Iterator[Table]:
    """Yield one table for each kind of step, the op that takes most of its time first.

    `whole` says whether they are all ops of the step.
    """
    ops, chip = config.ops, config.chip
    titles = {
        "decode": f"decode step: {ops.batch} requests of {ops.context} tokens",
        "prefill": f"prefill: {ops.prompt} tokens",
    }
    for step, rows in steps.items():
        table = plain_table("op", "shape", "runs on", "calls", "us", "best", "share", "GB/s", "FLOP/s", *_peak(chip))
        total_ms = sum(row.total_s for row in rows) * 1e3
        table.title, table.title_justify = (
            f"{titles[step]}, {_number_text(total_ms)} ms in {'ops' if whole else 'the ops named'}",
            "left",
        )
        for row in rows:
            timed, timing = row.timed, row.timed.timing
            peak = "-" if timed.peak is None else f"{timed.peak:.0%}"
            table.add_row(
                timed.op,
                shape_text(timed.shape),
                timed.provider,
                str(row.calls),
                _number_text(timing.median_s * 1e6),
                _number_text(timing.best_s * 1e6),
                f"{row.share:.1%}",
                _number_text(timed.gb_s),
                _rate(timed.tflops * 1e12),
                peak,
                timed.limit or "-",
                style="yellow" if timed.fallback else None,
            )
        yield table


def shape_text(shape: Mapping[str, Any]) -> str:
    """Return numbers as people read them, without those that say no or none."""
    return " ".join(_number(name, value) for name, value in shape.items() if not _is_absent(name, value))


def _is_absent(name: str, value: Any) -> bool:
    return value is False or (name, value) in (("group_size", -1), ("window", 0), ("heads", 0))


def _number(name: str, value: Any) -> str:
    return name if value is True else f"{name}={_value(value)}"


def _value(value: Any) -> str:
    if not isinstance(value, tuple | list):
        return str(value)
    if len(set(value)) == 1:
        return str(value[0]) if len(value) == 1 else f"{len(value)}x{value[0]}"
    return ",".join(map(str, value[:6])) + (",..." if len(value) > 6 else "")


def _calls(shapes: Sequence[Mapping[str, Any]]) -> str:
    """Return how often an op is called, and for how many tokens each time."""
    counts: dict[int, int] = {}
    for shape in shapes:
        tokens = shape["tokens"] if "tokens" in shape else sum(shape["query_lens"])
        counts[tokens] = counts.get(tokens, 0) + shape["calls"]
    return ", ".join(f"{count} x {tokens}" for tokens, count in counts.items()) or "-"


def _number_text(value: float) -> str:
    """Return three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else f"{value:.4f}"


def _rate(per_s: float) -> str:
    """Return operations a second with T, G, M or k."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_s >= factor:
            return f"{_number_text(per_s / factor)} {letter}"
    return "-" if per_s == 0 else _number_text(per_s)


def _peak(chip: ChipConfig) -> tuple[str, str]:
    """Return the headings of what is compared with the chip's figures, doubtful ones marked."""
    used = [chip.figures.get(name) for name in ("bandwidth_gb_s", "peak_tflops")]
    doubtful = any(source is not None and source.quality in _DOUBTFUL for source in used)
    return ("of peak?" if doubtful else "of peak"), "limit"
