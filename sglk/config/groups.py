"""Device groups, from `"cuda:0,cpu:0;cuda:1"` or the list form to GroupConfig."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sglk.config.quoting import list_text, shell_form
from sglk.config.ranges import address
from sglk.config.schema import GroupConfig
from sglk.errors import ConfigError, nearest

SIMULATED = "sim"
"""Backend of the devices that stand for any chip."""

MOST_DEVICES = 4096
"""No model has so many heads to divide, and no machine so many devices; a larger number is a slip."""

SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-6, 1e9
"""Beyond them sums and shares of floating-point numbers say nothing any more."""

BOUNDS = f" ({SMALLEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, or 0)"

_DEVICE = re.compile(r"[a-z][a-z0-9_-]*:(0|[1-9][0-9]*)")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class _Kind:
    """What a key of a group takes."""

    types: tuple[type, ...]
    words: str

    def holds(self, value: Any) -> bool:
        return isinstance(value, self.types) and (bool in self.types or not isinstance(value, bool))


_KINDS = {
    "name": _Kind((str, int), "text"),
    "devices": _Kind((str, list), "text or a list"),
    "url": _Kind((str,), "an address"),
    "api_key_file": _Kind((str,), "the path of a file"),
    "weight": _Kind((int, float), "a number"),
    "standby": _Kind((bool,), "true or false"),
    "chip": _Kind((str,), "text"),
    "model": _Kind((str,), "text"),
    "tp_size": _Kind((int,), "an integer"),
    "runtime": _Kind((Mapping,), "a mapping of runtime parameters"),
}


def parse_groups(value: Any, backend: str, tp_size: int = 1) -> list[GroupConfig]:
    """Return the device groups that `groups` means; ConfigError says what is wrong.

    Semicolons separate groups, commas the devices of one. Groups without a name are called `group0`, `group1`, ...
    null means one group with the first `tp_size` devices of `backend`.
    """
    if value is None:
        return [GroupConfig("group0", [f"{backend}:{index}" for index in range(min(tp_size, MOST_DEVICES))])]
    if isinstance(value, str):
        groups = [GroupConfig(f"group{i}", _devices(part)) for i, part in enumerate(value.split(";"))]
    elif isinstance(value, list) and value:
        groups = [_group(item, index) for index, item in enumerate(value)]
    else:
        wrong = "names no device" if value == [] else "is neither text nor a list"
        example = shell_form("groups", "cuda:0,cpu:0;cuda:1")
        raise ConfigError(
            f"groups={list_text(value)} {wrong}; write {example}, a list of name, devices, weight, or null"
        )
    _check(groups)
    return groups


def is_weight(value: object) -> bool:
    """Return whether `value` can be the weight of a group."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == 0 or SMALLEST_WEIGHT <= value <= LARGEST_WEIGHT


def _devices(text: str) -> list[str]:
    return [device.strip() for device in text.split(",")]


def _group(item: Any, index: int) -> GroupConfig:
    if isinstance(item, GroupConfig):
        return item
    if isinstance(item, str):
        return GroupConfig(f"group{index}", _devices(item))
    if not isinstance(item, Mapping):
        raise ConfigError(
            f"groups[{index}]={list_text(item)} is not a group; write a mapping of name, devices and weight"
        )
    allowed = [field.name for field in fields(GroupConfig)]
    for key in item:
        if key not in allowed:
            raise ConfigError(
                f"unknown key 'groups[{index}].{key}'{nearest(str(key), allowed) or f'; allowed: {allowed}'}"
            )
    given = {key: value for key, value in item.items() if value is not None}
    for key, value in given.items():
        if not _KINDS[key].holds(value):
            raise ConfigError(f"groups[{index}].{key}={list_text(value)} is not {_KINDS[key].words}")
    if is_weight(given.get("weight")):
        given["weight"] = float(given["weight"])
    devices = given.get("devices", [])
    given["devices"] = _devices(devices) if isinstance(devices, str) else [_device(each, index) for each in devices]
    return GroupConfig(**{**given, "name": str(given.get("name", f"group{index}"))})


def _device(value: Any, index: int) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"groups[{index}].devices has {list_text(value)}, which is not text such as cuda:0")
    return value.strip()


def _check_remote(group: GroupConfig) -> None:
    for problem in address(f"url of device group {group.name!r}", str(group.url)):
        raise ConfigError(problem)
    if group.devices or group.tp_size is not None or group.runtime:
        raise ConfigError(
            f"device group {group.name!r} has a url, whose server has its own devices and settings; leave out devices,"
            " tp_size and runtime"
        )


def _check(groups: list[GroupConfig]) -> None:
    names: set[str] = set()
    for group in groups:
        if group.name in names:
            raise ConfigError(f"two device groups are named {group.name!r}; give each its own name")
        names.add(group.name)
        if not _NAME.fullmatch(group.name):
            raise ConfigError(f"device group {group.name!r}: a name is of letters, digits, `_`, `-` and `.`")
        if empty := [key for key in ("chip", "model") if getattr(group, key) == ""]:
            raise ConfigError(f"{empty[0]} of device group {group.name!r} is empty; name one, or leave it out")
        if group.url is not None:
            _check_remote(group)
        elif group.api_key_file is not None:
            raise ConfigError(f"device group {group.name!r} has an api_key_file and no url; give both, or neither")
        elif not group.devices or group.devices == [""]:
            raise ConfigError(f"device group {group.name!r} has no devices; write backend:index, such as cuda:0")
        for device in group.devices:
            if (found := _DEVICE.fullmatch(device)) is None:
                raise ConfigError(
                    f"device {device!r} of group {group.name!r} is not of the form backend:index, such as cuda:0"
                )
            if len(found[1]) > len(str(MOST_DEVICES)) or int(found[1]) >= MOST_DEVICES:
                raise ConfigError(
                    f"device {device!r} of group {group.name!r} is on no machine;"
                    f" an index is at most {MOST_DEVICES - 1}"
                )
        if twice := [device for device in dict.fromkeys(group.devices) if group.devices.count(device) > 1]:
            raise ConfigError(f"device {twice[0]!r} is in group {group.name!r} twice; name it once")
        if not is_weight(group.weight):
            raise ConfigError(f"weight {group.weight} of device group {group.name!r} is not a number from 0 up{BOUNDS}")
    if not any(group.weight for group in groups if not group.standby):
        raise ConfigError("no device group but those on standby has a weight above 0; give at least one a weight")
