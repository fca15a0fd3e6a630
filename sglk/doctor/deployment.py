"""What a deployment asks of a machine, from its configuration alone."""

from collections.abc import Iterator
from dataclasses import replace

from sglk.config.model_size import num_parameters
from sglk.config.quantization import NAMES
from sglk.config.schema import ServeConfig

_DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_SCHEME_BYTES = {"w8a8": 1.0, "w8a16": 1.0, "fp8": 1.0, "w4a16": 0.5}
_USUAL_BYTES = 2.0


def backends(config: ServeConfig) -> list[str]:
    """Return the backends that drive the devices of all groups, the chosen one first."""
    chosen = config.backend.name
    kinds = dict.fromkeys(device.partition(":")[0] for group in config.groups for device in group.devices)
    # A backend that stands in for others, as a simulated one does, drives devices of any name.
    return sorted(kinds, key=lambda kind: kind != chosen) if chosen in kinds else [chosen]


def devices(config: ServeConfig, backend: str) -> list[str]:
    """Return the devices that `backend` drives, each once."""
    named = dict.fromkeys(device for group in config.groups for device in group.devices)
    if backend in backends(config) and len(backends(config)) == 1:
        return list(named)
    return [device for device in named if device.partition(":")[0] == backend]


def for_each_device(config: ServeConfig) -> Iterator[tuple[str, ServeConfig, int]]:
    """Yield each device of the chosen backend, a deployment whose first group has it, and its rank there."""
    wanted = devices(config, config.backend.name)
    for group in config.groups:
        for rank, device in enumerate(group.devices):
            if device in wanted:
                wanted.remove(device)
                yield device, replace(config, groups=[group]), rank


def weights_bytes(config: ServeConfig) -> float | None:
    """Return about how many bytes the weights take on the devices, None where the model's numbers are not known."""
    parameters = num_parameters(config.model)
    return None if parameters is None else parameters * _bytes_per_weight(config)


def _bytes_per_weight(config: ServeConfig) -> float:
    scheme = NAMES[config.runtime.quantization].scheme if config.runtime.quantization in NAMES else None
    if scheme is not None:
        return _SCHEME_BYTES[scheme]
    dtype = config.runtime.dtype
    if dtype == "auto" and config.chip.dtypes:
        dtype = config.chip.dtypes[0]
    return _DTYPE_BYTES.get(dtype, _USUAL_BYTES)
