"""Limits in the form `ttft_p99<2s,error_rate<1%`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglk.cluster.recent import PERCENTILES
from sglk.errors import RequestError, nearest

LATENCIES = tuple(f"{name}_p{share}" for name in ("ttft", "tpot", "e2e") for share in PERCENTILES)

FIGURES = (*LATENCIES, "error_rate")

_LIMIT = re.compile(r"\s*(\w+)\s*<=?\s*([0-9.]+)\s*(ms|s|%|)\s*")

_SCALES = {"ms": 1e-3, "s": 1.0, "%": 1e-2, "": 1.0}


@dataclass(frozen=True, slots=True)
class Limit:
    """Most that one figure may be, in seconds or as a share from 0 to 1."""

    figure: str
    most: float
    text: str
    """As it was written."""


def parse_slo(text: str) -> tuple[Limit, ...]:
    """Return the limits that `text` lists; raises RequestError for what is not one."""
    return tuple(_limit(part) for part in text.split(","))


def _limit(text: str) -> Limit:
    match = _LIMIT.fullmatch(text)
    if match is None:
        message = f"{text.strip()!r} is not a limit; write FIGURE<VALUE, such as ttft_p99<2s or error_rate<1%"
        raise RequestError(message, param="slo", code="invalid_value")
    figure, number, unit = match.groups()
    if figure not in FIGURES:
        hint = nearest(figure, FIGURES) or f"; there are {', '.join(FIGURES)}"
        raise RequestError(f"unknown figure {figure!r} in {text.strip()!r}{hint}", param="slo", code="invalid_value")
    allowed = ("%", "") if figure == "error_rate" else ("ms", "s")
    try:
        most = float(number) * _SCALES[unit]
    except ValueError:
        most = 0.0
    if unit not in allowed or most <= 0:
        message = (
            f"{number + unit!r} in {text.strip()!r} is not a limit above 0 in {' or '.join(filter(None, allowed))}"
        )
        raise RequestError(message, param="slo", code="invalid_value")
    return Limit(figure, most, text.strip())


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that was not kept."""

    figure: str
    """Which one; one of few words."""
    told: str
    """The same in full."""


def broken(limits: Sequence[Limit], figures: Mapping[str, float]) -> Breach | None:
    """Return the first of `limits` that the figures break; None when they keep all that can be judged."""
    for limit in limits:
        value = figures.get(limit.figure)
        if value is not None and value > limit.most:
            told = f"{value:.2%}" if limit.figure == "error_rate" else f"{value:.3g} s"
            return Breach(limit.figure, f"{limit.figure} is {told}, the limit is {limit.text}")
    return None
