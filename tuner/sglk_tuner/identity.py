"""What makes two runs the same study: change one of these and their trials may not be compared."""

import dataclasses
import json
from typing import Any

from sglk.bench.machine import describe_machine
from sglk.config.schema import ChipConfig, GroupConfig, ModelConfig
from sglk.config.tune_schema import TuneConfig
from sglk.planner.calibration.entries import Way
from sglk.planner.calibration.find import find_calibration
from sglk_tuner.objective import Goal
from sglk_tuner.space import Params, Space

Identity = dict[str, Any]
"""JSON-like; each top entry is one thing that the user can name."""

_LATER = frozenset({"chip.figures", "model.numbers", "backend.settings", "groups", "policy", "times"})
"""Entries that not every study has, as those of the first versions: they count where both have them."""

_NO_FIGURES = frozenset({"name", "title", "vendor", "backend", "figures"})

_NO_NUMBERS = frozenset({"name", "path", "package", "hub_id", "revision"})


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
        "chip.figures": _without(config.chip, _NO_FIGURES),
        "model": {key: getattr(model, key) for key in ("name", "path", "package", "hub_id", "revision")},
        "model.numbers": _without(model, _NO_NUMBERS),
        "engine": " ".join(filter(None, (config.engine.name, config.engine.version))),
        "backend": config.backend.name,
        "backend.settings": {key: _plain(getattr(config.backend, key)) for key in ("options", "deny", "fallback")},
        "groups": {group.name: _stated(group) for group in config.groups or ()},
        "policy": config.router.policy,
        "workload": dataclasses.asdict(config.workload),
        "goals": [str(goal) for goal in goals],
        "slo": dataclasses.asdict(config.bench.slo),
        "bench": {"api": load.api, "cache": load.cache, "max_failure_rate": load.max_failure_rate},
        "space": {key: list(values) for key, values in space.candidates.items()},
        "default": default,
        "runtime": fixed,
        **({"sessions": True} if load.sessions else {}),
        **({"simulate": True, "times": _times(config)} if config.study.simulate else {}),
        **({"calibration": config.calibration} if config.calibration != "auto" else {}),
    }


def _times(config: TuneConfig) -> str:
    """Return where the times of the default configuration come from."""
    found = find_calibration(config.chip.name, Way.of(config), config.calibration).found
    return "peak figures" if found is None else f"{found.path} of {found.entry.created}"


def _without(described: ChipConfig | ModelConfig, left_out: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(described).items() if key not in left_out}


def _stated(group: GroupConfig) -> dict[str, Any]:
    """Return what is not as it is in any group."""
    usual = dataclasses.asdict(GroupConfig())
    return {key: value for key, value in dataclasses.asdict(group).items() if value != usual[key] and key != "name"}


def _plain(value: Any) -> Any:
    """Return `value` as JSON gives it back."""
    return json.loads(json.dumps(value, default=dataclasses.asdict))


def differences(old: Identity, new: Identity) -> list[str]:
    """Return one line per entry that differs, such as `goals: ['minimize:x'] -> ['maximize:x']`."""
    lines: list[str] = []
    for key in sorted({*old, *new} - (_LATER - ({*old} & {*new}))):
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
