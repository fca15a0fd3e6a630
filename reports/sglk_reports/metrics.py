"""The figures of a record's summary, for people: what they are called, their unit, and which way is better."""

from collections.abc import Iterable

from sglk.errors import ConfigError, nearest
from sglk_reports.study import Goal

DEFAULT_METRIC = "output_throughput"
DEFAULT_LATENCY = "ttft_s_p99"

_TITLES = {
    "request_throughput": ("requests", "req/s"),
    "output_throughput": ("output throughput", "tok/s"),
    "total_throughput": ("total throughput", "tok/s"),
    "goodput": ("goodput", "req/s"),
    "goodput_share": ("requests within SLO", "%"),
    "success_rate": ("success rate", "%"),
    "cached_share": ("prompt from cache", "%"),
    "output_tokens": ("output tokens", ""),
    "prompt_tokens": ("prompt tokens", ""),
    "peak_memory_bytes": ("peak memory", "GiB"),
    "kv_capacity_tokens": ("KV capacity", "tokens"),
    "duration_s": ("duration", "s"),
    "failed_requests": ("failed requests", ""),
}
_LESS_IS_BETTER = ("peak_memory_bytes", "duration_s", "failed_requests", "engine_retractions", "engine_evicted_tokens")
_LATENCY_UNITS = {"ttft": "ms", "tpot": "ms", "itl": "ms", "e2e": "s"}
_SCALES = {"ms": 1000.0, "%": 100.0, "GiB": 2.0**-30}


def title(metric: str) -> str:
    """Return the metric's name without its unit, such as `TTFT p99`."""
    if metric in _TITLES:
        return _TITLES[metric][0]
    name, found, statistic = metric.partition("_s_")
    return f"{name.upper()} {statistic}" if found and name in _LATENCY_UNITS else metric.replace("_", " ")


def unit(metric: str) -> str:
    """Return the unit that `shown` converts to; empty for plain numbers and unknown metrics."""
    if metric in _TITLES:
        return _TITLES[metric][1]
    name, found, statistic = metric.partition("_s_")
    return _LATENCY_UNITS.get(name, "") if found and statistic != "n" else ""


def heading(metric: str) -> str:
    """Return name and unit, such as `TTFT p99 (ms)`."""
    return f"{title(metric)} ({unit(metric)})" if unit(metric) else title(metric)


def shown(metric: str, value: float) -> float:
    """Convert a record's SI value into the unit of `unit`."""
    return value * _SCALES.get(unit(metric), 1.0)


def is_latency(metric: str) -> bool:
    """Say whether the metric is a time, of which less is better."""
    return "_s_" in metric and not metric.endswith("_n")


def goal(text: str, known: Iterable[str]) -> Goal:
    """Read `METRIC`, `maximize:METRIC` or `minimize:METRIC`; a bare name goes its natural way. Raises ConfigError."""
    direction, colon, metric = text.partition(":")
    if not colon:
        direction, metric = ("minimize" if is_latency(text) or text in _LESS_IS_BETTER else "maximize"), text
    names = sorted(known)
    if metric not in names:
        raise ConfigError(f"--metric: no record has {metric!r}{nearest(metric, names)}; known are {', '.join(names)}")
    if direction == "maximize":
        return Goal(metric, "maximize")
    if direction == "minimize":
        return Goal(metric, "minimize")
    raise ConfigError(f"--metric: {direction!r} is no direction; write maximize:{metric} or minimize:{metric}")
