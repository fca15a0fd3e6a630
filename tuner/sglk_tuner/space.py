"""The settings that a study may try: candidates per key, without duplicates and without impossible combinations."""

import dataclasses
import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglk.config.check import runtime_problems
from sglk.config.keys import keys
from sglk.config.tune_schema import TuneConfig
from sglk.errors import ConfigError
from sglk.server import runtime_change
from sglk.upstream.compose import problem

Params = dict[str, Any]
"""Value per dotted key, such as `{"runtime.page_size": 16}`."""

ROOT = "runtime."
"""Start of every key that a study may search: a profile carries runtime values and nothing else."""

LIVE_KEYS = frozenset(f"{ROOT}{name}" for name in runtime_change.LIVE_KEYS)
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
    """What was corrected and left out, for the user."""

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


def build_space(config: TuneConfig) -> Space:
    """Return the space of `config.search.space`, which `compose` has checked key by key.

    Combinations that cannot run together are listed as impossible; a space without a possible one is refused.
    """
    notices: list[str] = []
    candidates = {key: _candidates(key, values, notices) for key, values in config.search.space.items()}
    size = math.prod(map(len, candidates.values()))
    if size > MOST_POINTS:
        raise ConfigError(f"search.space has {size} combinations, more than {MOST_POINTS}; give fewer candidates")
    points, impossible = _sieve(config, candidates)
    for reason, count in Counter(point.reason for point in impossible).items():
        notices.append(f"left out {count} impossible combination{'' if count == 1 else 's'}: {reason}")
    if not points:
        raise ConfigError(f"search.space has no possible combination: {impossible[0].reason}")
    return Space(candidates, tuple(points), tuple(impossible), tuple(notices))


def needs_restart(key: str, engine: str) -> bool:
    """Tell whether a change of `key` needs a new engine process."""
    return engine != "native" or key not in LIVE_KEYS


def params_of(config: TuneConfig, keys: Iterable[str]) -> Params:
    """Return the values that `config` has for `keys`."""
    return {key: getattr(config.runtime, key.removeprefix(ROOT)) for key in keys}


def apply(config: TuneConfig, params: Mapping[str, Any]) -> TuneConfig:
    """Return a copy of `config` with `params` in place."""
    runtime = dataclasses.replace(config.runtime, **{key.removeprefix(ROOT): value for key, value in params.items()})
    return dataclasses.replace(config, runtime=runtime)


def _candidates(key: str, values: list[Any], notices: list[str]) -> tuple[Any, ...]:
    if keys(TuneConfig)[key].type is float:
        # 1 and 1.0 are one candidate.
        values = [None if value is None else float(value) for value in values]
    repeated = dict.fromkeys(value for value in values if values.count(value) > 1)
    notices += [f"search.space: {key} lists {value!r} more than once; it is measured once" for value in repeated]
    distinct = tuple(dict.fromkeys(values))
    return tuple(sorted(distinct)) if is_ordered(distinct) else distinct


def _upstream_problems(config: TuneConfig) -> Iterator[str]:
    if (found := problem(config)) is not None:
        yield found


def _sieve(config: TuneConfig, candidates: dict[str, tuple[Any, ...]]) -> tuple[list[Params], list[Impossible]]:
    slow_first = sorted(candidates, key=lambda key: not needs_restart(key, config.engine.name))
    points: list[Params] = []
    impossible: list[Impossible] = []
    for values in itertools.product(*(candidates[key] for key in slow_first)):
        params = dict(zip(slow_first, values, strict=True))
        applied = apply(config, params)
        problems = list(runtime_problems(applied.runtime, config.chip, config.model)) or [*_upstream_problems(applied)]
        if problems:
            impossible.append(Impossible(params, "; ".join(problems)))
        else:
            points.append(params)
    return points, impossible
