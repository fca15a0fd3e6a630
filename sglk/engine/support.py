"""What a deployment asks of a device and of this engine, checked before any weight is read."""

import logging

from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import compute_dtype, kv_cache_dtype
from sglk.config.quantization import NAMES
from sglk.config.schema import RuntimeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.errors import ConfigError

logger = logging.getLogger(__name__)


def check_support(runtime: RuntimeConfig, backend: DeviceBackend, where: str) -> None:
    """Raise ConfigError for a setting that the device or the engine lacks; `where` names the device."""
    capabilities = backend.capabilities
    dtype = compute_dtype(runtime.dtype, capabilities, where)
    kv_cache_dtype(runtime.kv_cache_dtype, dtype, capabilities, where)
    _check_quantization(runtime.quantization, capabilities.quantization, where)
    if capabilities.page_sizes and runtime.page_size not in capabilities.page_sizes:
        sizes = ", ".join(map(str, capabilities.page_sizes))
        raise ConfigError(f"runtime.page_size={runtime.page_size} is not supported by {where}; choose one of {sizes}")
    if ranks_of(runtime) != 1 and capabilities.collectives is None:
        raise ConfigError(
            f"runtime.tp_size={runtime.tp_size} is not supported by {where}, which cannot add over several devices; "
            "set it to 1"
        )
    if runtime.enable_torch_compile:
        logger.warning("runtime.enable_torch_compile has no effect in the native engine")


def _check_quantization(requested: str | None, supported: frozenset[str], where: str) -> None:
    if requested is None:
        return
    if requested not in NAMES:
        raise ConfigError(
            f"runtime.quantization={requested} is not known to the native engine; choose one of {', '.join(NAMES)}"
        )
    scheme = NAMES[requested].scheme
    if scheme is not None and scheme not in supported:
        listed = ", ".join(sorted(supported)) or "none"
        raise ConfigError(f"runtime.quantization={requested} is not supported by {where}; supported schemes: {listed}")
