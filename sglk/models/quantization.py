"""How the layers of a model are quantised: what the device can multiply, and what the checkpoint holds."""

from sglk.backends.base import Capabilities, DeviceBackend
from sglk.backends.schemes import LinearScheme, Quantization, on_load
from sglk.errors import ConfigError
from sglk.models.awq_weights import AwqWeights
from sglk.models.gptq_weights import GptqWeights
from sglk.models.packed_weights import PackedWeights
from sglk.models.quantised_weights import QuantisedWeights
from sglk.models.quantization_config import CheckpointQuantization
from sglk.models.safetensors_weights import SafetensorsWeights
from sglk.models.scaled_weights import InverselyScaledWeights, ScaledWeights
from sglk.models.spec import ModelSpec
from sglk.models.weights import WeightSource


def check_scheme(kind: str, backend: DeviceBackend, where: str) -> None:
    """Raise ConfigError where the device has no such scheme; `where` names the device."""
    supported = backend.capabilities.quantization
    if kind not in supported:
        listed = ", ".join(sorted(supported)) or "none"
        raise ConfigError(f"weights quantised as {kind} are not supported by {where}; supported schemes: {listed}")


def open_quantised(stored: SafetensorsWeights, found: CheckpointQuantization) -> QuantisedWeights:
    """Return the reader of a quantised checkpoint's layout."""
    if found.method == "gptq":
        return GptqWeights(stored, found)
    if found.method == "awq":
        return AwqWeights(stored, found)
    if found.packed:
        return PackedWeights(stored, found)
    inverse = any(name.endswith(".weight_scale_inv") for name in stored.names())
    return InverselyScaledWeights(stored, found) if inverse else ScaledWeights(stored, found)


def quantization_of(
    source: WeightSource | None, scheme: LinearScheme | None, spec: ModelSpec, capabilities: Capabilities
) -> Quantization:
    """Return the schemes of all layers: as `source` has them, or `scheme` for all where it is in full precision."""
    if isinstance(source, QuantisedWeights):
        return source.quantization()
    return on_load(scheme, capabilities.int8_group_size, experts=spec.moe is not None)
