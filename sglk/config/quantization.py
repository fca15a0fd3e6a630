"""Values of `runtime.quantization`: each names a scheme, a layout of checkpoints, or both."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuantizationName:
    """What one value asks for."""

    scheme: str | None
    """How weights are stored and multiplied; None = whatever the checkpoint says."""
    method: str | None = None
    """`quant_method` that the checkpoint must have; None = any, or none where the scheme is made when loading."""


NAMES = {
    "w8a8": QuantizationName("w8a8"),
    "w8a8_int8": QuantizationName("w8a8"),
    "w8a16": QuantizationName("w8a16"),
    "w4a16": QuantizationName("w4a16"),
    "fp8": QuantizationName("fp8"),
    "w8a8_fp8": QuantizationName("fp8"),
    "gptq": QuantizationName("w4a16", "gptq"),
    "awq": QuantizationName("w4a16", "awq"),
    "compressed-tensors": QuantizationName(None, "compressed-tensors"),
}
"""sglk's names of schemes, and the names that SGLang and vLLM use."""


def schemes_of(names: Iterable[str]) -> frozenset[str]:
    """Return the schemes that a chip has which declares `names`."""
    return frozenset(name.scheme for key in names if (name := NAMES.get(key)) and name.scheme)


def is_declared(value: str, names: Iterable[str]) -> bool:
    """Return whether a chip that declares `names` takes `runtime.quantization=value`, under this name or another."""
    declared = tuple(names)
    known = NAMES.get(value)
    return value in declared or (known is not None and known.scheme in schemes_of(declared))
