"""What runs on its own in a deployment that is spread over machines: one `sglk serve` for each device group."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sglk.config.compose import Composed
from sglk.config.fleet import ReplicaConfig, shared_words
from sglk.config.groups import SIMULATED
from sglk.config.profiles import profile_file
from sglk.config.quoting import list_text
from sglk.config.render_schema import RenderConfig
from sglk.config.schema import GroupConfig, ServeConfig
from sglk.errors import ConfigError
from sglk.upstream.render.carried import carried, without_secrets

LONGEST_NAME = 40
LONGEST_LABEL = 63
"""Names of services are DNS labels, and groups add to them."""


@dataclass(frozen=True)
class Unit:
    """One process to start, or a server that runs already."""

    name: str
    group: GroupConfig
    config: ServeConfig
    """Of the first replica."""
    words: tuple[str, ...] = ()
    """What stands after `sglk serve`; empty for a server that runs already."""
    devices: tuple[str, ...] = ()
    """`backend:index`, as they are called where the deployment was composed."""
    url: str | None = None
    """Where a server runs already."""
    commands: tuple[str, ...] = ()
    """Command lines of the upstream engines that it starts, for the reader."""


@dataclass(frozen=True)
class Rendered:
    """A deployment as files see it."""

    name: str
    config: RenderConfig
    words: tuple[str, ...]
    """What was typed, for one machine that runs all of it: after `sglk serve`."""
    units: tuple[Unit, ...]
    files: dict[str, str] = field(default_factory=dict)
    """Configuration beside the words, by its path from the working directory: tuned profiles, files of the user."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Environment variables of the server's keys that are in use."""
        server = self.config.server
        used = {"SGLK_API_KEY": server.api_key, "SGLK_ADMIN_API_KEY": server.admin_api_key}
        return tuple(variable for variable, key in used.items() if key is not None)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that clients ask for."""
        return (self.config.server.served_model_name or self.config.model.name,)

    @property
    def drain_s(self) -> int:
        """Seconds from SIGTERM after which nothing is left to wait for."""
        return int(self.config.server.shutdown_timeout_s) + 15


def rendered(
    composed: Composed[RenderConfig],
    replicas: Sequence[ReplicaConfig],
    config_dir: str | None,
    commands: dict[str, str],
) -> Rendered:
    """Describe a deployment; `commands` are those of upstream engines by replica. Raises ConfigError."""
    config = composed.config
    typed = list(carried(composed.words))
    name = config.render.name or _label(config.model.name)
    _require_name(name)
    if config.server.port == 0:
        raise ConfigError("server.port=0 is any free port, which other files cannot name; write a port")
    words = (*typed, *_size(composed, replicas))
    units = tuple(_units(name, replace(composed, words=typed), replicas, commands))
    _require_labels(units)
    return Rendered(name, config, words, units, _files(composed, config_dir))


def _units(
    name: str, composed: Composed[RenderConfig], replicas: Sequence[ReplicaConfig], commands: dict[str, str]
) -> Iterator[Unit]:
    for group in composed.config.groups:
        own = [replica for replica in replicas if replica.group.name == group.name]
        config = own[0].config
        label = f"{name}-{_label(group.name)}" if len(composed.config.groups) > 1 else name
        if group.url is not None:
            yield Unit(label, group, config, url=group.url)
            continue
        devices = tuple(device for replica in own for device in replica.config.groups[0].devices)
        told = tuple(commands[replica.name] for replica in own if replica.name in commands)
        yield Unit(
            label, group, config, tuple(_group_words(composed, group, own, len(devices))), devices, commands=told
        )


def _group_words(
    composed: Composed[RenderConfig], group: GroupConfig, own: Sequence[ReplicaConfig], devices: int
) -> Iterator[str]:
    """Yield the words that serve one group on a machine whose devices are its own."""
    if len(composed.config.groups) == 1 and not composed.names_devices:
        yield from (*composed.words, *_size(composed, own))
        return
    config = own[0].config
    yield from shared_words(composed.words, group)
    yield f"chip={config.chip.name}"
    if group.model is not None:
        yield f"model={group.model}"
    if config.backend.name == SIMULATED:
        yield f"backend={SIMULATED}"
    kind = config.groups[0].devices[0].partition(":")[0]
    told: dict[str, Any] = {"name": group.name, "devices": [f"{kind}:{index}" for index in range(devices)]}
    if config.runtime.tp_size not in (None, 1):
        told["tp_size"] = config.runtime.tp_size
    if group.runtime:
        told["runtime"] = dict(group.runtime)
    yield f"groups={list_text([told])}"


def _size(composed: Composed[RenderConfig], replicas: Sequence[ReplicaConfig]) -> Iterator[str]:
    """State the number of devices that was chosen here, so that it is the same where the files are used."""
    tp_size = replicas[0].config.runtime.tp_size
    stated = any(word.lstrip("+").startswith(("runtime.tp_size=", "groups=")) for word in composed.words)
    if not stated and tp_size not in (None, 1):
        yield f"runtime.tp_size={tp_size}"


def _files(composed: Composed[RenderConfig], config_dir: str | None) -> dict[str, str]:
    files = {}
    config = composed.config
    if composed.profile_path is not None:
        place = profile_file("profiles", config.chip.name, config.model.name, config.engine.name)
        files[place.as_posix()] = without_secrets(composed.profile_path)
    if config_dir is not None:
        root = Path(config_dir)
        for file in sorted(root.rglob("*.yaml")):
            files[f"conf/{file.relative_to(root).as_posix()}"] = without_secrets(file)
    return files


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST_NAME] or "model"


def _require_labels(units: Sequence[Unit]) -> None:
    owners: dict[str, str] = {}
    for unit in units:
        if len(unit.name) > LONGEST_LABEL:
            raise ConfigError(
                f"device group {unit.group.name!r} makes a service {unit.name!r} of more than {LONGEST_LABEL} signs;"
                " write a shorter render.name, or call the group otherwise"
            )
        if unit.name in owners:
            raise ConfigError(
                f"device groups {owners[unit.name]!r} and {unit.group.name!r} make one service {unit.name!r};"
                " call one of them otherwise"
            )
        owners[unit.name] = unit.group.name


def _require_name(name: str) -> None:
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) or len(name) > LONGEST_NAME:
        raise ConfigError(
            f"render.name={name!r} is no name of a service; it is of a-z, 0-9 and `-`, begins with a letter and has at"
            f" most {LONGEST_NAME} signs; write render.name"
        )
