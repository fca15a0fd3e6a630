"""Names of dtypes and what one number takes, without torch."""

from sglk.config.schema import ChipConfig, RuntimeConfig
from sglk.errors import ConfigError

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

_ASSUMED = "bf16"
"""Of a chip whose file names no dtype."""


def compute_dtype(runtime: RuntimeConfig, chip: ChipConfig) -> str:
    """Return the dtype that `runtime.dtype` means on a chip; raises ConfigError for one of unknown size."""
    if runtime.dtype != "auto":
        return _known(runtime.dtype, chip)
    return _known(chip.dtypes[0], chip) if chip.dtypes else _ASSUMED


def kv_dtype(runtime: RuntimeConfig, chip: ChipConfig) -> str:
    """Return the dtype that `runtime.kv_cache_dtype` means on a chip; raises ConfigError for one of unknown size."""
    return compute_dtype(runtime, chip) if runtime.kv_cache_dtype == "auto" else _known(runtime.kv_cache_dtype, chip)


def _known(name: str, chip: ChipConfig) -> str:
    if name not in BYTES:
        raise ConfigError(f"dtype {name!r} of chip {chip.name!r} is unknown; known are {', '.join(BYTES)}")
    return name
