"""Names of dtypes and what one number takes, without torch."""

from sglk.config.schema import ChipConfig, RuntimeConfig

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

_ASSUMED = "bf16"
"""Of a chip whose file names no dtype."""


def compute_dtype(runtime: RuntimeConfig, chip: ChipConfig) -> str:
    """Return the dtype that `runtime.dtype` means on a chip."""
    if runtime.dtype != "auto":
        return runtime.dtype
    return chip.dtypes[0] if chip.dtypes else _ASSUMED


def kv_dtype(runtime: RuntimeConfig, chip: ChipConfig) -> str:
    """Return the dtype that `runtime.kv_cache_dtype` means on a chip."""
    return compute_dtype(runtime, chip) if runtime.kv_cache_dtype == "auto" else runtime.kv_cache_dtype
