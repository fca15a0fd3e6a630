"""Traces in the form of Mooncake's (Qin et al. 2024): JSON lines with hashed blocks of 512 tokens.

{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}   (timestamp in ms)
"""

import json
from collections.abc import Iterator
from typing import Any

from sglk.bench.trace import TraceRequest, read_lines
from sglk.errors import ConfigError

BLOCK = 512
"""Tokens of a block."""

_COLUMNS = ("timestamp", "input_length", "output_length", "hash_ids")


def read_mooncake(file: str) -> Iterator[TraceRequest]:
    """Yield the requests of a trace file; raises ConfigError that names the line."""
    for number, line in read_lines(file):
        entry = _entry(line, f"trace {file!r}, line {number}")
        blocks = tuple(entry["hash_ids"])
        yield TraceRequest(number, entry["timestamp"] / 1000, entry["input_length"], entry["output_length"], blocks)


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}, is not JSON; a Mooncake trace has one object a line") from None
    if not isinstance(entry, dict) or any(name not in entry for name in _COLUMNS):
        found = ", ".join(map(str, entry)) if isinstance(entry, dict) else type(entry).__name__
        raise ConfigError(f"{where}, has {found[:80] or 'nothing'}; a Mooncake trace has {', '.join(_COLUMNS)}")
    for name in _COLUMNS[:3]:
        if not _is_whole(entry[name]):
            raise ConfigError(f"{where}: {name} is {json.dumps(entry[name])[:40]}, not a whole number from 0 up")
    blocks = entry["hash_ids"]
    if not isinstance(blocks, list) or not all(map(_is_whole, blocks)):
        raise ConfigError(f"{where}: hash_ids is not a list of whole numbers")
    wanted = -(-entry["input_length"] // BLOCK)
    if len(blocks) != wanted:
        raise ConfigError(
            f"{where}: {len(blocks)} hash_ids for {entry['input_length']} tokens, which have {wanted} blocks of "
            f"{BLOCK}; the trace has other blocks, or lacks some"
        )
    return entry


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
