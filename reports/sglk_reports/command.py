"""`sglk report`: rank and plot what was measured."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sglk import atomic_file
from sglk.commands.flags import common_flags
from sglk.errors import ConfigError, RunError, nearest

# pandas and plotly come with an extra and take their time: they are imported when there is work for them.
if TYPE_CHECKING:
    from sglk_reports.report import Report

_HELP = """\
usage: sglk report [PATH or STUDY ...] [--metric METRIC] [--out DIR] [--json]

Rank the settings of studies and runs, show what each parameter does and compare chips under the same traffic.
A path is a record of `sglk bench`, a study's folder, or a folder of either; without one, ./studies and ./runs.
Writes a CSV of every row, Markdown, and one HTML page that works offline.

flags
  --metric METRIC    rank by this figure of the records instead of the study's goals, such as goodput,
                     ttft_s_p99 or maximize:cached_share; may be repeated, the first one ranks
  --out DIR          folder for the files (default: report)
  --json             print rankings and chips as JSON instead of tables
  --debug            show the traceback of an error
  --help             show this text

examples
  sglk report
  sglk report cpu-smollm2-chat-throughput
  sglk report runs --metric ttft_s_p99 --out /tmp/report"""

_SUFFIXES = ("csv", "md", "html")


@dataclass
class _Options:
    paths: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    out: str = "report"


def run(arguments: list[str]) -> int:
    """Print the report and write its files; raises ConfigError for wrong arguments, RunError for nothing to report."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        print(_HELP)
        return 0
    options = _options(flags.arguments)
    if (why := atomic_file.obstacle(Path(options.out) / "report.html")) is not None:
        raise ConfigError(f"cannot write the report to {options.out!r}: {why}; choose another --out")

    from sglk_reports.report import build_report
    from sglk_reports.sources import find_sources

    report = build_report(find_sources(options.paths, Path()), options.metrics)
    for line in report.skipped:
        print(f"sglk: warning: skipped: {line}", file=sys.stderr)
    written = _write(report, Path(options.out))
    _print(report, written, as_json="--json" in flags.switches)
    return 0


def _options(words: list[str]) -> _Options:
    options = _Options()
    rest = iter(words)
    for word in rest:
        name, _, given = word.partition("=")
        if name == "--out":
            options.out = given or _next(rest, "--out needs a folder, such as --out report")
        elif name == "--metric":
            options.metrics.append(given or _next(rest, "--metric needs a figure, such as --metric ttft_s_p99"))
        elif word.startswith("-"):
            hint = nearest(name, ("--metric", "--out", "--json")) or "; see `sglk report --help`"
            raise ConfigError(f"flag {name!r} is unknown{hint}")
        else:
            options.paths.append(word)
    return options


def _next(words: Iterator[str], missing: str) -> str:
    word = next(words, "")
    if not word or word.startswith("-"):
        raise ConfigError(missing)
    return word


def _write(report: "Report", folder: Path) -> list[Path]:
    from sglk_reports.markdown import to_markdown
    from sglk_reports.page import to_page

    stem = re.sub(r"[^\w.-]+", "-", report.name).strip("-.") or "report"
    paths = [folder / f"{stem}.{suffix}" for suffix in _SUFFIXES]
    texts = [report.frame.to_csv(index=False), to_markdown(report), to_page(report)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the report to {str(folder)!r}: {error.strerror}; choose another --out") from error
    return paths


def _print(report: "Report", written: list[Path], *, as_json: bool) -> None:
    if as_json:
        from sglk_reports.document import to_document

        print(json.dumps(to_document(report) | {"files": list(map(str, written))}, indent=2, allow_nan=False))
        return
    from sglk_reports.terminal import show

    show(report)
    print(f"\nwrote {', '.join(map(str, written))}")
