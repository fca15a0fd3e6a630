"""Device groups, from `"cuda:0,kunlun:0;cuda:1"` or the list form to GroupConfig."""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sglk.config.quoting import shell_form
from sglk.config.schema import GroupConfig
from sglk.errors import ConfigError, nearest

_DEVICE = re.compile(r"[a-z][a-z0-9_-]*:\d+")


def parse_groups(value: Any, backend: str, tp_size: int = 1) -> list[GroupConfig]:
    """Return the device groups that `groups` means; ConfigError says what is wrong.

    Semicolons separate groups, commas the devices of one. Groups without a name are called `group0`, `group1`, ...
    null means one group with the first `tp_size` devices of `backend`.
    """
    if value is None:
        return [GroupConfig("group0", [f"{backend}:{index}" for index in range(tp_size)])]
    if isinstance(value, str):
        groups = [GroupConfig(f"group{i}", _devices(part)) for i, part in enumerate(value.split(";"))]
    elif isinstance(value, list) and value:
        groups = [_group(item, index) for index, item in enumerate(value)]
    else:
        example = shell_form("groups", "cuda:0,kunlun:0;cuda:1")
        raise ConfigError(
            f"groups={value!r} is neither text nor a list; write {example} or a list of name, devices, weight"
        )
    _check(groups)
    return groups


def _devices(text: str) -> list[str]:
    return [device.strip() for device in text.split(",")]


def _group(item: Any, index: int) -> GroupConfig:
    if isinstance(item, GroupConfig):
        return item
    if isinstance(item, str):
        return GroupConfig(f"group{index}", _devices(item))
    if not isinstance(item, Mapping):
        raise ConfigError(f"groups[{index}]={item!r} is not a group; write a mapping of name, devices and weight")
    allowed = [field.name for field in fields(GroupConfig)]
    for key in item:
        if key not in allowed:
            raise ConfigError(
                f"unknown key 'groups[{index}].{key}'{nearest(str(key), allowed) or f'; allowed: {allowed}'}"
            )
    devices = item.get("devices")
    weight = item.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ConfigError(f"groups[{index}].weight={weight!r} is not a number")
    return GroupConfig(
        name=str(item.get("name") or f"group{index}"),
        devices=_devices(devices) if isinstance(devices, str) else [str(device) for device in devices or []],
        weight=float(weight),
    )


def _check(groups: list[GroupConfig]) -> None:
    owners: dict[str, str] = {}
    names: set[str] = set()
    for group in groups:
        if group.name in names:
            raise ConfigError(f"two device groups are named {group.name!r}; give each its own name")
        names.add(group.name)
        if not group.devices or group.devices == [""]:
            raise ConfigError(f"device group {group.name!r} has no devices; write backend:index, such as cuda:0")
        for device in group.devices:
            if not _DEVICE.fullmatch(device):
                raise ConfigError(
                    f"device {device!r} of group {group.name!r} is not of the form backend:index, such as cuda:0"
                )
            if device in owners:
                raise ConfigError(
                    f"device {device!r} is in group {owners[device]!r} and again in {group.name!r}; use it once"
                )
            owners[device] = group.name
        if not math.isfinite(group.weight) or group.weight < 0:
            raise ConfigError(f"weight {group.weight} of device group {group.name!r} is not a number from 0 up")
    if not any(group.weight for group in groups):
        raise ConfigError("all device groups have weight 0; give at least one a positive weight")
