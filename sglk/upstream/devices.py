"""Which devices a process may see."""

from collections.abc import Mapping, Sequence

from sglk.errors import ConfigError


def visible(devices: Sequence[str], variable: str, environ: Mapping[str, str]) -> str:
    """Return the value of `variable` that shows `devices` (`backend:index` each) and no others.

    Where this process itself sees only some, an index counts among those. Raises ConfigError for one beyond them.
    """
    indices = [int(device.partition(":")[2]) for device in devices]
    ours = environ.get(variable, "").strip()
    if not ours:
        return ",".join(map(str, indices))
    seen = [each.strip() for each in ours.split(",")]
    beyond = [device for device, index in zip(devices, indices, strict=True) if index >= len(seen)]
    if beyond:
        raise ConfigError(f"device {beyond[0]!r} is not there: ${variable}={ours} shows {len(seen)}; name others")
    return ",".join(seen[index] for index in indices)
