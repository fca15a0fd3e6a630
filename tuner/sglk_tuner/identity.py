"""What makes two runs the same study: change one of these and their trials may not be compared."""

import dataclasses
from typing import Any

from sglk.bench.machine import describe_machine
from sglk.config.tune_schema import TuneConfig
from sglk_tuner.objective import Goal
from sglk_tuner.space import Params, Space

Identity = dict[str, Any]
"""JSON-like; each top entry is one thing that the user can name."""


def identity_of(config: TuneConfig, space: Space, goals: tuple[Goal, ...], default: Params) -> Identity:
    """Return the identity of the study that `config` describes."""
    model = config.model
    fixed = {
        key: value
        for key, value in dataclasses.asdict(config.runtime).items()
        if f"runtime.{key}" not in space.candidates
    }
    load, machine = config.bench, describe_machine()
    return {
        "machine": {"cpu": machine.cpu, "cores": machine.cores},
        "chip": config.chip.name,
        "model": {key: getattr(model, key) for key in ("name", "path", "package", "hub_id", "revision")},
        "engine": " ".join(filter(None, (config.engine.name, config.engine.version))),
        "backend": config.backend.name,
        "workload": dataclasses.asdict(config.workload),
        "goals": [str(goal) for goal in goals],
        "slo": dataclasses.asdict(config.bench.slo),
        "bench": {"api": load.api, "cache": load.cache, "max_failure_rate": load.max_failure_rate},
        "space": {key: list(values) for key, values in space.candidates.items()},
        "default": default,
        "runtime": fixed,
        **({"sessions": True} if load.sessions else {}),
        **({"simulate": True} if config.study.simulate else {}),
        **({"calibration": config.calibration} if config.calibration != "auto" else {}),
    }


def differences(old: Identity, new: Identity) -> list[str]:
    """Return one line per entry that differs, such as `goals: ['minimize:x'] -> ['maximize:x']`."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        lines += _differences(key, old.get(key), new.get(key))
    return lines


def _differences(key: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for name in sorted({*old, *new})
            for line in _differences(f"{key}.{name}", old.get(name), new.get(name))
        ]
    return [f"{key}: {old!r} -> {new!r}"]
