"""The device whose ops are looked at."""

from dataclasses import replace

from sglk.backends.base import DeviceBackend
from sglk.config.ops_schema import OpsConfig
from sglk.engine.loading import make_backend
from sglk.engine.support import check_support
from sglk.errors import ConfigError


def open_device(config: OpsConfig) -> DeviceBackend:
    """Return the first device of a deployment, on which the reference may always stand in: what it does is looked at.

    One device is enough to look at the part of a model that one of several ranks has. Raises BackendError where the
    chip's backend or its device is absent, ConfigError where it lacks what the deployment asks for.
    """
    if config.groups[0].url is not None:
        name = config.groups[0].name
        raise ConfigError(
            f"device group {name!r} is a server elsewhere, whose ops cannot be looked at; leave out groups"
        )
    group = replace(config.groups[0], devices=config.groups[0].devices[:1])
    alone = replace(
        config,
        backend=replace(config.backend, fallback="allow"),
        runtime=replace(config.runtime, tp_size=1),
        groups=[group],
    )
    backend = make_backend(alone, 0)
    check_support(config.runtime, backend, where(config))
    return backend


def where(config: OpsConfig) -> str:
    """Return the device's name for messages."""
    return f"backend {config.backend.name!r} of chip {config.chip.name!r}"
