"""Numbers that no setting can mean: beyond what arrays, clocks and chips have room for."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from sglk.config.keys import PASS_THROUGH

MAX_INTEGER = 2**31 - 1
"""Counts and sizes reach arrays and libraries that hold no more."""

MAX_SEED = 2**63 - 1
"""Of what is drawn: whoever begins with the time of day in milliseconds needs more than 31 bits."""

MAX_SECONDS = 1e6
"""A week and a half; the system counts some waits in milliseconds of 31 bits."""

SMALLEST, LARGEST = 1e-15, 1e15
"""Beyond them quotients and products of settings leave what floating-point numbers hold."""

_UNBOUND = (*PASS_THROUGH, "backend.upstream", "profile")
"""Options of others, whatever they mean, and what was measured once."""


def number_problems(path: str, value: object) -> Iterator[str]:
    """Yield which numbers at `path`, and below it, are beyond all bounds."""
    if path in _UNBOUND or isinstance(value, bool):
        return
    if is_dataclass(value):
        for field in fields(value):
            inner = f"{path}.{field.name}" if path else field.name
            yield from number_problems(inner, getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from number_problems(f"{path}.{key}", each)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from number_problems(f"{path}[{index}]", each)
    elif isinstance(value, int):
        yield from _integer_problems(path, value)
    elif isinstance(value, float):
        yield from _float_problems(path, value)


def _integer_problems(path: str, value: int) -> Iterator[str]:
    most = MAX_SEED if path.endswith(".seed") else MAX_INTEGER
    if abs(value) > most:
        size = f"large; it is at most {most}" if value > 0 else f"small; it is at least {-most}"
        yield f"{path}={_short(value)} is too {size}"


def _float_problems(path: str, value: float) -> Iterator[str]:
    if not math.isfinite(value):
        yield f"{path}={value:g} is not a finite number"
    elif path.endswith("_s") and not path.endswith("_gb_s") and abs(value) > MAX_SECONDS:
        yield f"{path}={value:g} is too large; it is at most {MAX_SECONDS:g} seconds"
    elif abs(value) > LARGEST:
        yield f"{path}={value:g} is beyond what can be computed with, {LARGEST:g} at most"
    elif 0 < abs(value) < SMALLEST:
        yield f"{path}={value:g} is too small to be computed with; next to 0 is {SMALLEST:g}"


def _short(value: int) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}... ({len(text)} digits)"
