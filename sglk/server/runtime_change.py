"""Runtime parameters that change while the server runs, checked as configuration is."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sglk.config.check import runtime_problems
from sglk.config.keys import Key, keys
from sglk.config.schema import RuntimeConfig, ServeConfig
from sglk.engine.fixed_keys import FIXED_KEYS
from sglk.errors import ConfigError, nearest

LIVE_KEYS = tuple(name for name in keys(RuntimeConfig) if name not in FIXED_KEYS)
"""Parameters that the scheduler and the KV pool alone read; all others are fixed once the weights are loaded."""

SHOWN = 60
"""Characters that a message repeats of what it refuses."""


def changed_runtime(config: ServeConfig, current: RuntimeConfig, changes: Mapping[str, Any]) -> RuntimeConfig:
    """Return `current` with `changes`, keys of the `runtime` group; raises ConfigError in configuration's words.

    A key that needs a restart may be given with the value that it has.
    """
    known = keys(RuntimeConfig)
    for name, value in changes.items():
        if name not in known:
            raise ConfigError(f"unknown key runtime.{name[:SHOWN]}{nearest(name, known) or f'; live keys: {_live()}'}")
        if not _fits(value, known[name]):
            raise ConfigError(f"runtime.{name}={repr(value)[:SHOWN]} is not {known[name].wanted}")
        if isinstance(value, str) and len(value) > SHOWN:
            raise ConfigError(f"runtime.{name} has a value of {len(value)} characters; none has more than {SHOWN}")
        if name not in LIVE_KEYS and value != getattr(current, name):
            raise ConfigError(
                f"runtime.{name} is fixed while the server runs; restart it with runtime.{name}={value}; live keys: "
                f"{_live()}"
            )
    changed = dataclasses.replace(current, **changes)
    problems = list(runtime_problems(changed, config.chip, config.model))
    if problems:
        raise ConfigError("; ".join(problems))
    return changed


def _live() -> str:
    return ", ".join(LIVE_KEYS)


def _fits(value: object, key: Key) -> bool:
    if value is None:
        return key.optional
    if key.type is bool or isinstance(value, bool):
        return key.type is bool and isinstance(value, bool)
    if key.type is float:
        return isinstance(value, int | float)
    return isinstance(value, key.type)
