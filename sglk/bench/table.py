"""A record as people read it at the end of a run."""

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sglk.bench.record import Record

_COLUMNS = ("mean", "p50", "p90", "p99")
_LATENCIES = (
    ("ttft_s", "time to first token"),
    ("tpot_s", "time per output token"),
    ("itl_s", "inter-token latency"),
    ("e2e_s", "end to end"),
)
_RATES = (
    ("request_throughput", "requests/s"),
    ("output_throughput", "output tokens/s"),
    ("total_throughput", "all tokens/s"),
    ("goodput", "goodput, requests/s"),
)


def show(record: Record) -> Group:
    """Return the record's figures, counts and warnings."""
    heading = f"{record.kind} {record.workload['name']} on {record.model or '?'}, chip {record.chip or '?'}"
    warnings = [Text(f"warning: {warning}", style="yellow") for warning in record.warnings]
    parts = [Text(heading, style="bold"), *(Text(line) for line in _lines(record))]
    # Without a completed request there is no figure to show.
    tables = [_rates(record), _latencies(record)] if record.counts.completed else []
    return Group(*parts, *tables, *warnings)


def _lines(record: Record) -> Iterator[str]:
    counts, load = record.counts, record.load
    short = f" ({counts.short} of them short)" if counts.short else ""
    yield (
        f"{counts.requests} requests in {record.duration_s:.2f} s: {counts.completed} ok{short}, "
        f"{counts.failed} failed, {counts.timeout} timed out, after {counts.warmup} for warm-up"
    )
    share = record.summary["cached_share"]
    hits = "hit rate unknown" if share is None else f"{share:.1%} of prompt tokens from the prefix cache"
    yield f"api {load.api}, cache {load.cache}, {hits}"


def _rates(record: Record) -> Table:
    table = _plain("rate", "value")
    for key, name in _RATES:
        table.add_row(name, _figure(record.summary[key], 1.0))
    return table


def _latencies(record: Record) -> Table:
    table = _plain("latency, ms", "n", *_COLUMNS)
    for key, name in _LATENCIES:
        figures = [_figure(record.summary[f"{key}_{column}"], 1000.0) for column in _COLUMNS]
        table.add_row(name, f"{record.summary[f'{key}_n']:g}", *figures)
    return table


def _plain(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True, min_width=24)
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _figure(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value * scale:,.2f}"
