"""Which quantisation a model is loaded with: what its checkpoint has, what the user asks for, what the device does."""

from sglk.backends.base import DeviceBackend
from sglk.backends.schemes import LinearScheme, Quantization
from sglk.config.quantization import NAMES
from sglk.errors import ConfigError
from sglk.models.awq_weights import AwqWeights
from sglk.models.gptq_weights import GptqWeights
from sglk.models.packed_weights import PackedWeights
from sglk.models.quantised_weights import QuantisedWeights
from sglk.models.quantization_config import CheckpointQuantization
from sglk.models.safetensors_weights import SafetensorsWeights
from sglk.models.scaled_weights import InverselyScaledWeights, ScaledWeights
from sglk.models.weights import WeightSource

ON_LOAD = {
    "w8a8": LinearScheme("w8a8"),
    "w8a16": LinearScheme("w8a16"),
    "w4a16": LinearScheme("w4a16", 32, symmetric=False),
    "fp8": LinearScheme("fp8"),
}
"""What full-precision weights are rounded to when they are loaded."""


def choose_scheme(requested: str | None, found: CheckpointQuantization | None, where: str) -> LinearScheme | None:
    """Return the scheme that `runtime.quantization=requested` means for a checkpoint; None = full precision.

    Raises ConfigError where the checkpoint, which `where` names, is of another kind than the user says.
    """
    if requested is None:
        return found.scheme if found else None
    name = NAMES[requested]
    if found is None:
        if name.method is not None:
            raise ConfigError(
                f"runtime.quantization={requested} asks for a checkpoint that is quantised already, and {where} is in "
                f"full precision; choose null, or one of {', '.join(ON_LOAD)} to round it when it is loaded"
            )
        assert name.scheme is not None
        return ON_LOAD[name.scheme]
    # The name of a layout leaves the scheme to the checkpoint: GPTQ has several.
    same = name.method == found.method if name.method else name.scheme == found.scheme.kind
    if not same:
        raise ConfigError(
            f"runtime.quantization={requested} contradicts {where}, which is quantised as {found.scheme.kind} "
            f"({found.method}); set it to null or {found.scheme.kind}"
        )
    return found.scheme


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


def quantization_of(source: WeightSource | None, scheme: LinearScheme | None) -> Quantization:
    """Return the schemes of all layers: as `source` has them, or `scheme` for all where it is in full precision."""
    return source.quantization() if isinstance(source, QuantisedWeights) else Quantization(default=scheme)
