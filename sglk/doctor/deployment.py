"""What a deployment asks of a machine, from its configuration alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from sglk.config.compose import Composed
from sglk.config.model_size import num_parameters
from sglk.config.quantization import NAMES
from sglk.config.schema import ServeConfig

_DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_SCHEME_BYTES = {"w8a8": 1.0, "w8a16": 1.0, "fp8": 1.0, "w4a16": 0.5}
_USUAL_BYTES = 2.0


@dataclass(frozen=True)
class Deployment:
    """What is to be served, and with which devices."""

    composed: Composed[ServeConfig]
    replicas: list[ServeConfig]
    """The configuration of each replica of each device group."""

    @property
    def config(self) -> ServeConfig:
        """What the user chose for all groups alike."""
        return self.composed.config

    @property
    def backends(self) -> list[str]:
        """The backends that drive the devices, the first group's first."""
        return list(dict.fromkeys(replica.backend.name for replica in self.replicas))

    def environment(self, backend: str) -> dict[str, str]:
        """Return the variables that the libraries of `backend` read when they load."""
        return next((dict(each.backend.environment) for each in self.replicas if each.backend.name == backend), {})

    def devices(self, backend: str) -> list[str]:
        """Return the devices that `backend` drives, each once."""
        used = [replica for replica in self.replicas if replica.backend.name == backend]
        return list(dict.fromkeys(device for replica in used for device in replica.groups[0].devices))

    def each_device(self, backend: str) -> Iterator[tuple[str, ServeConfig, int]]:
        """Yield each device of `backend`, the first replica that it is part of, and its rank there."""
        seen = set[str]()
        for replica in self.replicas:
            for rank, device in enumerate(replica.groups[0].devices):
                if replica.backend.name == backend and device not in seen:
                    seen.add(device)
                    yield device, replica, rank


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
