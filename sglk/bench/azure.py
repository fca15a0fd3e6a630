"""Traces in the form of Azure's LLM inference traces of 2023 and 2024 (Patel et al. 2024): CSV with three columns.

TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
"""

import csv
import re
from collections.abc import Iterator
from datetime import datetime, timezone

from sglk.bench.trace import TraceRequest, read_lines
from sglk.errors import ConfigError

_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_FRACTION = re.compile(r"\.\d+")


def read_azure(file: str) -> Iterator[TraceRequest]:
    """Yield the requests of a trace file; raises ConfigError that names the line."""
    lines = read_lines(file)
    _, header = next(lines)
    columns = _cells(header, f"trace {file!r}, line 1")
    if columns != _COLUMNS:
        raise ConfigError(
            f"trace {file!r} has the columns {','.join(columns)[:80]!r}; an Azure trace has {','.join(_COLUMNS)!r}"
        )
    empty = True
    for number, line in lines:
        empty = False
        where = f"trace {file!r}, line {number}"
        yield _request(number, _cells(line, where), where)
    if empty:
        raise ConfigError(f"trace {file!r} has no line below its columns; give a file with at least one request")


def _cells(line: str, where: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise ConfigError(f"{where}, is no CSV: {error}") from error


def _request(number: int, cells: list[str], where: str) -> TraceRequest:
    if len(cells) != len(_COLUMNS) or "" in cells:
        raise ConfigError(f"{where}, has {len([cell for cell in cells if cell])} values; {len(_COLUMNS)} are needed")
    for name, cell in zip(_COLUMNS[1:], cells[1:], strict=True):
        if not (cell.isascii() and cell.isdigit() and len(cell) < 10):
            raise ConfigError(f"{where}: {name} is {cell[:40]!r}, not a whole number")
    return TraceRequest(number, _seconds(cells[0], where), int(cells[1]), int(cells[2]))


def _seconds(text: str, where: str) -> float:
    # Seven digits of a second are more than Python before 3.11 reads.
    fraction = _FRACTION.search(text)
    whole = _FRACTION.sub("", text)
    try:
        moment = datetime.fromisoformat(whole.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigError(f"{where}: TIMESTAMP is {text[:40]!r}, not such as '2023-11-16 18:15:46.6805900'") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return moment.timestamp() + (float(f"0{fraction.group()}") if fraction else 0.0)
