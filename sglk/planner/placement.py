"""Which devices each replica gets: those that are stated, else as few as hold the model and a useful KV pool."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Generic

from sglk.backends.vendors import devices_here
from sglk.config.compose import Composed, RootT
from sglk.config.fleet import ReplicaConfig, replica_configs
from sglk.config.groups import SIMULATED
from sglk.config.schema import GroupConfig, ServeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.planner.choice import Choice, choose

TP_SIZE = "runtime.tp_size"

AUTOMATIC = "automatic"
"""Begins what the sources of a configuration say of a number of devices that was chosen."""


@dataclass(frozen=True)
class Placement(Generic[RootT]):
    """A deployment in which every replica has its devices."""

    composed: Composed[RootT]
    """With the first replica's `runtime.tp_size`, and where that comes from."""
    replicas: list[ReplicaConfig]


def place(
    composed: Composed[RootT], config_dir: str | Path | None = None, *, elsewhere: bool = False
) -> Placement[RootT]:
    """Give every replica of a composed deployment its devices; raises ConfigError as `replica_configs` does.

    A `runtime.tp_size` that is stated stays. Without `groups` a replica gets the first devices of its machine, the
    fewest on which one request of full length has room; in a group of stated devices their number must divide them.
    `elsewhere` counts the devices of a usual machine of the chip, not those of this one.
    Nothing here raises because a model does not fit: then one device is tried, and the engine says what is too small.
    """
    replicas = replica_configs(composed, config_dir)
    groups = [list(members) for _, members in groupby(replicas, lambda each: each.group.name)]
    placed = [_placed(members, composed.names_devices, elsewhere) for members in groups]
    replicas = [each for members, _ in placed for each in members]
    reasons = [(members[0].group.name, choice.why) for members, choice in placed if choice is not None]
    return Placement(_settled(composed, replicas, reasons), replicas)


def _settled(
    composed: Composed[RootT], replicas: Sequence[ReplicaConfig], reasons: Sequence[tuple[str, str]]
) -> Composed[RootT]:
    config, first = composed.config, replicas[0].config
    if not reasons:
        return composed
    told = reasons[0][1] if len(replicas) == 1 else "; ".join(f"{group}: {why}" for group, why in reasons)
    runtime = replace(config.runtime, tp_size=ranks_of(first.runtime))
    groups = config.groups if composed.names_devices else first.groups
    sources = {**composed.sources, TP_SIZE: f"{AUTOMATIC}: {told}"}
    return replace(composed, config=replace(config, runtime=runtime, groups=groups), sources=sources)


def _placed(
    members: list[ReplicaConfig], names_devices: bool, elsewhere: bool
) -> tuple[list[ReplicaConfig], Choice | None]:
    if members[0].config.runtime.tp_size is not None:
        return members, None
    return _in_group(members) if names_devices else _on_machine(members[0], elsewhere)


def _on_machine(replica: ReplicaConfig, elsewhere: bool) -> tuple[list[ReplicaConfig], Choice]:
    config = replica.config
    choice = choose(config, range(1, _devices_of(config, elsewhere) + 1))
    kind = config.groups[0].devices[0].partition(":")[0]
    group = replace(replica.group, devices=[f"{kind}:{index}" for index in range(choice.size)])
    return [_replica(replica, group, group.devices, 0, choice)], choice


def _devices_of(config: ServeConfig, elsewhere: bool) -> int:
    """Return how many devices there are for a replica: those of this machine, or of the one that its chip comes in."""
    here = None if elsewhere or config.backend.name == SIMULATED else devices_here(config.backend.name)
    return here or config.chip.devices_per_machine or 1


def _in_group(members: list[ReplicaConfig]) -> tuple[list[ReplicaConfig], Choice]:
    """Join the replicas of a group, of one device each, to larger ones where one device is too small."""
    kinds = {(each.config.chip.name, each.config.backend.name) for each in members}
    # Devices of several kinds share no model.
    sizes = [size for size in range(1, len(members) + 1) if len(members) % size == 0] if len(kinds) == 1 else [1]
    choice = choose(members[0].config, sizes)
    group = members[0].group
    devices = [each.config.groups[0].devices[0] for each in members]
    joined = [
        _replica(each, group, devices[index : index + choice.size], index // choice.size, choice)
        for index, each in enumerate(members)
        if index % choice.size == 0
    ]
    return joined, choice


def _replica(
    sample: ReplicaConfig, group: GroupConfig, devices: list[str], number: int, choice: Choice
) -> ReplicaConfig:
    config = sample.config
    own = replace(
        config,
        runtime=replace(config.runtime, tp_size=choice.size),
        groups=[replace(config.groups[0], devices=devices)],
    )
    return replace(sample, name=f"{group.name}/{number}", group=group, config=own, note=choice.note)
