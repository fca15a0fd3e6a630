"""From a configuration with device groups to one configuration for each replica."""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sglk.config.check import check
from sglk.config.compose import Composed, compose
from sglk.config.groups import SIMULATED
from sglk.config.keys import lookup
from sglk.config.quoting import list_text
from sglk.config.schema import GroupConfig, RuntimeConfig, ServeConfig
from sglk.config.sources import inherited_runtime
from sglk.config.tensor_parallel import ranks_of
from sglk.errors import ConfigError, nearest

_NOT_SHARED = (
    "chip",
    "groups",
    "backend.name",
    "backend.options",
    "workload",
    "plan",
    "target",
    "render",
    "simulate",
    "calibration",
    "bench",
    "objective",
    "search",
    "study",
)
"""Nodes that a group has of its own, or that say nothing about a deployment."""


@dataclass(frozen=True)
class ReplicaConfig:
    """One engine of a fleet."""

    name: str
    """Group and position, such as `gpu/0`."""
    group: GroupConfig
    config: ServeConfig
    """A deployment of this replica alone."""
    inherited: frozenset[str] = frozenset()
    """Runtime parameters that come from the files of a chip or a profile, and were not stated for this deployment."""
    note: str | None = None
    """Why it has as many devices as it has, for its log; None where that was said, or is one."""


def alone(config: ServeConfig) -> list[ReplicaConfig]:
    """Return the one replica of a deployment that has one."""
    return [ReplicaConfig(f"{config.groups[0].name}/0", config.groups[0], config)]


def replica_configs(composed: Composed[Any], config_dir: str | Path | None = None) -> list[ReplicaConfig]:
    """Return what each replica of each group serves, in the order of the groups.

    Each `tp_size` devices of a group are a replica; where that is automatic each device is one, until
    `sglk.planner.placement` has chosen. Its chip brings its own runtime defaults and its own tuned profile; the command
    line is stronger, and `runtime` of its group strongest. Raises ConfigError for what does not fit together, devices
    that are to give more than all of their memory included.
    """
    replicas = [
        each
        for group in composed.config.groups
        for each in (
            _replicas(composed, group, config_dir) if group.url is None else [_remote(composed, group, config_dir)]
        )
    ]
    _check_shares(replicas)
    return replicas


def _replicas(composed: Composed[Any], group: GroupConfig, config_dir: str | Path | None) -> Iterator[ReplicaConfig]:
    bases: dict[str, tuple[ServeConfig, frozenset[str]]] = {}
    tp_size, ranks = None, 1
    for index, device in enumerate(group.devices):
        if index % ranks:
            continue
        kind = device.partition(":")[0]
        if kind not in bases:
            bases[kind] = _base(composed, group, kind, config_dir)
        base, inherited = bases[kind]
        runtime = _runtime(base.runtime, group)
        if index == 0:
            tp_size, ranks = runtime.tp_size, _ranks(group, ranks_of(runtime))
        replica = _replica(replace(base, runtime=replace(runtime, tp_size=tp_size)), group, index // ranks, ranks)
        yield replace(replica, inherited=inherited - group.runtime.keys())


def _remote(composed: Composed[Any], group: GroupConfig, config_dir: str | Path | None) -> ReplicaConfig:
    """Return the replica for a running server, which is of the chosen chip unless the group names another."""
    base = composed.config
    if group.chip is not None and group.chip != base.chip.name:
        base = compose("serve", [*shared_words(composed.words, group), f"chip={group.chip}"], config_dir).config
    config = ServeConfig(**{field.name: getattr(base, field.name) for field in fields(ServeConfig)})
    # How many devices it has is its own affair.
    runtime = replace(config.runtime, tp_size=1)
    return ReplicaConfig(
        f"{group.name}/0", group, replace(config, runtime=runtime, groups=[replace(group, weight=1.0)])
    )


def _ranks(group: GroupConfig, tp_size: int) -> int:
    if tp_size < 1 or len(group.devices) % tp_size:
        raise ConfigError(
            f"device group {group.name!r} has {len(group.devices)} devices, which its tp_size={tp_size} does not divide"
        )
    return tp_size


def _replica(base: ServeConfig, group: GroupConfig, number: int, ranks: int) -> ReplicaConfig:
    devices = group.devices[number * ranks : (number + 1) * ranks]
    _check_kind(group, devices)
    if base.backend.name == SIMULATED:
        devices = [f"{SIMULATED}:{device.partition(':')[2]}" for device in devices]
    config = replace(base, groups=[replace(group, devices=devices, weight=1.0, runtime={})])
    _check(config, group)
    return ReplicaConfig(f"{group.name}/{number}", group, config)


def _check_kind(group: GroupConfig, devices: Sequence[str]) -> None:
    kinds = sorted({device.partition(":")[0] for device in devices})
    if len(kinds) > 1:
        raise ConfigError(
            f"replica of {', '.join(devices)} in device group {group.name!r} mixes {' and '.join(kinds)};"
            " the parts of one model run on one kind of device"
        )


def _base(
    composed: Composed[Any], group: GroupConfig, kind: str, config_dir: str | Path | None
) -> tuple[ServeConfig, frozenset[str]]:
    """Return the deployment of the group's chip and model, with backend `kind`, and what of it files say.

    It is a simulated one with `backend=sim`.
    """
    config = composed.config
    simulated = SIMULATED in (kind, config.backend.name)
    backend = SIMULATED if simulated else kind
    own = kind in (config.backend.name, config.chip.backend, SIMULATED)
    chip = group.chip or (config.chip.name if own else kind)
    model = group.model or config.model.name
    if (chip, model, backend) == (config.chip.name, config.model.name, config.backend.name):
        own_fields = {field.name: getattr(config, field.name) for field in fields(ServeConfig)}
        return ServeConfig(**own_fields), inherited_runtime(composed.sources)
    typed = [*shared_words(composed.words, group), f"chip={chip}"]
    typed += [f"model={model}"] if group.model else []
    typed += [f"backend={SIMULATED}"] if simulated else []
    try:
        found = compose("serve", typed, config_dir)
    except ConfigError as error:
        raise ConfigError(f"device group {group.name!r}: {error}") from error
    if backend != found.config.backend.name:
        raise ConfigError(f"device group {group.name!r} {_other_kind(kind, chip, found.config.chip.backend)}")
    return found.config, inherited_runtime(found.sources)


def _other_kind(kind: str, chip: str, driver: str) -> str:
    if kind == chip:
        return (
            f"has devices {kind}:..., which is the name of a chip that {driver!r} drives; write {driver}:0 and"
            f" `chip: {chip}` in the group, or backend=sim to simulate it"
        )
    way_out = f"name a chip of {kind!r} in the group's `chip`"
    return f"has devices {kind}:..., chip {chip!r} is driven by {driver!r}; {way_out}"


def shared_words(words: Sequence[str], group: GroupConfig) -> Iterator[str]:
    """Yield what was typed for all groups alike: all but what belongs to the chosen chip, and the groups themselves."""
    dropped = [*_NOT_SHARED, *(["model"] if group.model else [])]
    for line in words:
        key = line.lstrip("+~").partition("=")[0]
        if not any(key == each or key.startswith(f"{each}.") for each in dropped) and key != "backend":
            yield line


def _runtime(base: RuntimeConfig, group: GroupConfig) -> RuntimeConfig:
    for name, value in group.runtime.items():
        known = lookup(ServeConfig, f"runtime.{name}")
        if known is None:
            names = [field.name for field in fields(RuntimeConfig)]
            hint = nearest(str(name), names) or "; see `sglk serve --help` for all keys"
            raise ConfigError(f"unknown key {name!r} in `runtime` of device group {group.name!r}{hint}")
        if not _fits(value, known.type, known.optional):
            raise ConfigError(
                f"{name}={list_text(value)} in `runtime` of device group {group.name!r} is not {known.wanted}"
            )
    runtime = replace(base, **_as_typed(group.runtime))
    return runtime if group.tp_size is None else replace(runtime, tp_size=group.tp_size)


def _as_typed(values: Mapping[str, Any]) -> dict[str, Any]:
    typed = {}
    for name, value in values.items():
        known = lookup(ServeConfig, f"runtime.{name}")
        typed[str(name)] = float(value) if known and known.type is float and value is not None else copy.copy(value)
    return typed


def _fits(value: object, wanted: object, optional: bool) -> bool:
    if value is None:
        return optional
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return (
        isinstance(value, int | float)
        if wanted is float
        else isinstance(value, wanted if isinstance(wanted, type) else str)
    )


def _check(config: ServeConfig, group: GroupConfig) -> None:
    try:
        check(config)
    except ConfigError as error:
        raise ConfigError(f"device group {group.name!r}: {error}") from error


def _check_shares(replicas: Sequence[ReplicaConfig]) -> None:
    """Refuse replicas that are to take more than the whole memory of a device that they share, or differ over it."""
    takers: dict[str, list[ReplicaConfig]] = defaultdict(list)
    for each in replicas:
        for device in {memory_of(device, each.config) for device in each.config.groups[0].devices}:
            takers[device].append(each)
    for device, sharing in takers.items():
        chips = {each.config.chip.memory_gib: each for each in sharing if each.config.chip.memory_gib is not None}
        if len(chips) > 1:
            told = " and ".join(f"{gib:g} GiB as {each.config.chip.name} in {each.name}" for gib, each in chips.items())
            raise ConfigError(f"{device} has {told}; write one `chip` in all groups that share it")
        total = sum(each.config.runtime.mem_fraction_static for each in sharing)
        if len(sharing) > 1 and total > 1 + 1e-9:
            told = " + ".join(f"{each.name} {each.config.runtime.mem_fraction_static:g}" for each in sharing)
            raise ConfigError(
                f"replicas on {device} are to take {told} = {total:g} of its memory; write"
                f" runtime.mem_fraction_static={1 / len(sharing):.2g} or less, or `runtime` of each group"
            )


def memory_of(device: str, config: ServeConfig) -> str:
    """Return which memory a device works in."""
    kind, _, index = device.partition(":")
    if kind == SIMULATED:
        return f"{device} as {config.chip.name}"
    # The processor works in main memory, whatever the index.
    return kind if kind == "cpu" else f"{kind}:{index}"
