"""The settings that a study may try: candidates per key, without duplicates and without impossible combinations."""

import copy
import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglk.config.schema import TuneConfig
from sglk.errors import ConfigError, nearest

Params = dict[str, Any]
"""Value per dotted key, such as `{"runtime.page_size": 16}`."""

ROOTS = ("runtime", "backend", "engine")
"""Groups that a study may search: the ones that a profile can carry."""

LIVE_KEYS = frozenset(
    f"runtime.{name}"
    for name in (
        "chunked_prefill_size",
        "max_prefill_tokens",
        "max_running_requests",
        "mem_fraction_static",
        "max_total_tokens",
        "schedule_policy",
        "schedule_conservativeness",
        "page_size",
        "radix_min_len",
        "disable_radix_cache",
        "kv_cache_dtype",
    )
)
"""Keys that the native engine applies with its weights kept; every other key needs a new engine process."""

MOST_POINTS = 20_000


@dataclass(frozen=True)
class Impossible:
    """A combination that no engine would accept, found without starting one."""

    params: Params
    reason: str


@dataclass(frozen=True)
class Space:
    """Candidates per key and what is left of their combinations."""

    candidates: dict[str, tuple[Any, ...]]
    """Per key; ordered knobs ascend, the others keep the user's order."""
    points: tuple[Params, ...]
    """Possible combinations; keys that need a new engine vary slowest."""
    impossible: tuple[Impossible, ...]
    notices: tuple[str, ...]
    """What was corrected on the way, for the user."""

    @property
    def hash(self) -> str:
        """SHA-256 of the candidates, whatever the order they were written in."""
        text = json.dumps(self.candidates, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def point_key(params: Mapping[str, Any]) -> str:
    """Return the identity of a point: equal for equal settings."""
    return json.dumps(params, sort_keys=True)


def is_ordered(candidates: tuple[Any, ...]) -> bool:
    """Tell whether the candidates are numbers, so that neighbours resemble each other."""
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in candidates)


def build_space(config: TuneConfig, check: Callable[[TuneConfig], None]) -> Space:
    """Return the space of `config.search.space`.

    `check` raises ConfigError for a configuration that cannot run; such points are listed as impossible. A space whose
    every point is impossible is refused.
    """
    if not config.search.space:
        raise ConfigError("search.space is empty; choose one, such as search=grid, or give candidates per key")
    notices: list[str] = []
    candidates = {key: _candidates(config, key, values, notices) for key, values in config.search.space.items()}
    size = math.prod(map(len, candidates.values()))
    if size > MOST_POINTS:
        raise ConfigError(f"search.space has {size} combinations, more than {MOST_POINTS}; give fewer candidates")
    points, impossible = _sieve(config, candidates, check)
    if not points:
        raise ConfigError(f"search.space has no possible combination: {impossible[0].reason}")
    return Space(candidates, tuple(points), tuple(impossible), tuple(notices))


def needs_restart(key: str, engine: str) -> bool:
    """Tell whether a change of `key` needs a new engine process."""
    return engine != "native" or key not in LIVE_KEYS


def params_of(config: TuneConfig, keys: Iterator[str] | Mapping[str, Any]) -> Params:
    """Return the values that `config` has for `keys`."""
    return {key: _get(config, key) for key in keys}


def apply(config: TuneConfig, params: Mapping[str, Any]) -> TuneConfig:
    """Return a copy of `config` with `params` in place."""
    changed = dataclasses.replace(
        config,
        backend=copy.deepcopy(config.backend),
        engine=copy.deepcopy(config.engine),
        runtime=copy.copy(config.runtime),
    )
    for key, value in params.items():
        _set(changed, key, value)
    return changed


def _candidates(config: TuneConfig, key: str, values: list[Any], notices: list[str]) -> tuple[Any, ...]:
    present = _get(config, key)
    if not isinstance(values, list) or not values:
        raise ConfigError(f"search.space: {key!r} has no candidates; give a list, such as {key}=[{present}]")
    kept: list[Any] = []
    for value in (_as_type(key, value, present) for value in values):
        if any(type(value) is type(other) and value == other for other in kept):
            notices.append(f"search.space: {key} lists {value!r} more than once; it is measured once")
        else:
            kept.append(value)
    return tuple(sorted(kept) if is_ordered(tuple(kept)) else kept)


def _as_type(key: str, value: Any, present: Any) -> Any:
    """Give a candidate the type of the setting it replaces, so that 0 and 0.0 are one candidate."""
    if isinstance(value, (list, dict)):
        raise ConfigError(f"search.space: {key!r} has the candidate {value!r}; candidates are single values")
    if isinstance(present, bool) or isinstance(value, bool) or value is None or present is None:
        return value
    if isinstance(present, float) and isinstance(value, int):
        return float(value)
    if isinstance(present, int) and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not type(present):
        kind = type(present).__name__
        raise ConfigError(f"search.space: {key!r} has the candidate {value!r}; this setting takes {kind} values")
    return value


def _sieve(
    config: TuneConfig, candidates: dict[str, tuple[Any, ...]], check: Callable[[TuneConfig], None]
) -> tuple[list[Params], list[Impossible]]:
    slow_first = sorted(candidates, key=lambda key: not needs_restart(key, config.engine.name))
    points: list[Params] = []
    impossible: list[Impossible] = []
    for values in itertools.product(*(candidates[key] for key in slow_first)):
        params = dict(zip(slow_first, values, strict=True))
        try:
            check(apply(config, params))
        except ConfigError as error:
            impossible.append(Impossible(params, str(error)))
        else:
            points.append(params)
    return points, impossible


def _parent(config: TuneConfig, key: str) -> tuple[Any, str]:
    root, _, rest = key.partition(".")
    if root not in ROOTS or not rest:
        raise ConfigError(
            f"search.space: {key!r} cannot be searched{nearest(key, _keys(config))}; keys start with runtime."
        )
    node: Any = getattr(config, root)
    *middle, last = rest.split(".")
    for name in middle:
        node = node.get(name) if isinstance(node, dict) else getattr(node, name, None)
    known = isinstance(node, dict) or (dataclasses.is_dataclass(node) and hasattr(node, last))
    if not known:
        raise ConfigError(f"search.space: {key!r} is not a setting{nearest(key, _keys(config))}")
    return node, last


def _keys(config: TuneConfig) -> list[str]:
    return [f"runtime.{field.name}" for field in dataclasses.fields(config.runtime)]


def _get(config: TuneConfig, key: str) -> Any:
    node, name = _parent(config, key)
    return node.get(name) if isinstance(node, dict) else getattr(node, name)


def _set(config: TuneConfig, key: str, value: Any) -> None:
    node, name = _parent(config, key)
    if isinstance(node, dict):
        node[name] = value
    else:
        setattr(node, name, value)
