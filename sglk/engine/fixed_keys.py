"""Runtime parameters that are built into the loaded model."""

from sglk.config.schema import RuntimeConfig
from sglk.errors import ConfigError

FIXED_KEYS = (
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "load_format",
    "tp_size",
    "enable_deterministic_inference",
    "num_threads",
    "enable_torch_compile",
    "disable_cuda_graph",
    "nan_guard",
)


def check_fixed(loaded: RuntimeConfig, wanted: RuntimeConfig) -> None:
    """Raise ConfigError for the first parameter of `wanted` that needs another start."""
    for key in FIXED_KEYS:
        old, new = getattr(loaded, key), getattr(wanted, key)
        if old != new:
            raise ConfigError(f"runtime.{key} is {old!r} in the loaded model; start again to make it {new!r}")
