"""The one form of every benchmark: rows of figures, with what they are held against, in one JSON object."""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sglk.bench.machine import describe_machine, describe_tool


@dataclass(frozen=True)
class Row:
    """One figure; `against` names the bar or the rival that `other_value`, in the same unit, belongs to."""

    metric: str
    value: float
    unit: str
    against: str | None = None
    other_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """`value` to `other_value`."""
        return None if not self.other_value else self.value / self.other_value


Measure = Callable[..., list[Row]]
"""Takes whether to be quick, and the path of the rival's program where there may be one; returns the figures."""


Page = Callable[[dict[str, Any]], str]
"""Takes the result, returns a page about it."""


def main(
    name: str, measure: Measure, packages: Sequence[str] = (), page: Page | None = None, rival: str | None = None
) -> int:
    """Run the benchmark as `python -m benchmarks.NAME [--quick] [--json FILE]`; `packages` get their version noted.

    With a `page`, `--write FILE` writes it. With the name of a `rival` program, `--rival PATH` tells where it is.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    if page is not None:
        parser.add_argument("--write", type=Path, metavar="FILE", help="write a page about it there")
    if rival is not None:
        parser.add_argument(
            "--rival", metavar="PATH", default=shutil.which(rival), help=f"{rival}; else that of the path"
        )
    options = parser.parse_args()
    rows = measure(options.quick) if rival is None else measure(options.quick, options.rival)
    for row in rows:
        print(_line(row))
    result = _result(name, rows, packages)
    if page is not None and options.write is not None:
        options.write.write_text(page(result), encoding="utf-8")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return 0


def _result(name: str, rows: Sequence[Row], packages: Sequence[str]) -> dict[str, Any]:
    tool = describe_tool()
    return {
        "name": name,
        "command": shlex.join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]]),
        "machine": asdict(describe_machine()),
        "versions": {
            "python": sys.version.split()[0],
            "sglk": f"{tool.version} ({tool.commit})" if tool.commit else tool.version,
            **{package: version(package) for package in packages},
        },
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
    }


def _line(row: Row) -> str:
    text = f"{row.metric:<64} {row.value:>10.4g} {row.unit:<6}"
    if row.other_value is None or row.ratio is None:
        return text.rstrip()
    return f"{text} {row.ratio:>6.2f} x {row.other_value:.4g} ({row.against})"
