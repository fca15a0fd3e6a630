"""What a server says of itself, read as strangers are read: a wrong type, size or sign counts as nothing said."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

_LARGEST: Final = 2**63 - 1
_DEPTH: Final = 32
_ENGINE_PREFIXES: Final = ("sglk_", "sglang:", "vllm:")


def statement(body: str) -> dict[str, Any]:
    """Return the object of a JSON body; empty if it is none. Figures that a record cannot hold are null."""
    try:
        value = _plain(json.loads(body), _DEPTH)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def printable_text(value: object) -> str | None:
    """Return a text that a terminal can show."""
    return printable(value) if isinstance(value, str) and value else None


def whole(value: object) -> int | None:
    """Return a count: a whole number from 0 up, of 64 bits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None


def named(value: object) -> dict[str, Any] | None:
    """Return an object."""
    return value if isinstance(value, dict) else None


def items(value: object) -> list[Any]:
    """Return the items of a list; none of anything else."""
    return value if isinstance(value, list) else []


def texts(value: object) -> dict[str, str]:
    """Return the entries of an object that are texts."""
    return {key: said for key, entry in (named(value) or {}).items() if (said := printable_text(entry)) is not None}


def printable(words: str) -> str:
    """Return a text in one line, without the signs that move a terminal's cursor or change its colours."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in words).split())


def counters(exposition: str) -> dict[str, float]:
    """Return an engine's counters without prefix and suffix, summed over their labels; empty for what is no metrics."""
    try:
        families = list(text_string_to_metric_families(exposition))
    except (ValueError, LookupError, TypeError, AttributeError):  # the parser trips over rubbish in its own ways
        return {}
    for prefix in _ENGINE_PREFIXES:
        found = {
            family.name.removeprefix(prefix): math.fsum(
                sample.value
                for sample in family.samples
                if sample.name.endswith("_total") and math.isfinite(sample.value)
            )
            for family in families
            if family.type == "counter" and family.name.startswith(prefix)
        }
        if found:
            return found
    return {}


def _plain(value: Any, depth: int) -> Any:
    if depth == 0:
        return None
    if isinstance(value, Mapping):
        return {key: _plain(entry, depth - 1) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry, depth - 1) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else None
    return value
