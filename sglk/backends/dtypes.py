"""Names of dtypes as users type them, and torch's."""

import torch

from sglk.backends.base import Capabilities
from sglk.errors import ConfigError

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called `name`; raises ConfigError for a name that is none."""
    try:
        return TORCH_DTYPES[name]
    except KeyError:
        raise ConfigError(f"unknown dtype {name!r}; choose one of {', '.join(TORCH_DTYPES)}") from None


def dtype_name(dtype: torch.dtype) -> str:
    """Return the short name of `dtype`, such as `fp32`."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def compute_dtype(requested: str, capabilities: Capabilities, where: str = "this backend") -> torch.dtype:
    """Return the dtype that `runtime.dtype=requested` means on a device.

    Raises ConfigError where the device has none such; `where` names the device in it.
    """
    name = capabilities.default_dtype if requested == "auto" else requested
    return _declared("runtime.dtype", name, capabilities.dtypes, where)


def kv_cache_dtype(
    requested: str, compute: torch.dtype, capabilities: Capabilities, where: str = "this backend"
) -> torch.dtype:
    """Return the dtype that `runtime.kv_cache_dtype=requested` means beside `compute`; ConfigError as above."""
    name = dtype_name(compute) if requested == "auto" else requested
    return _declared("runtime.kv_cache_dtype", name, capabilities.kv_cache_dtypes, where)


def _declared(key: str, name: str, declared: frozenset[str], where: str) -> torch.dtype:
    if name not in declared:
        raise ConfigError(
            f"{key}={name} is not supported by {where}; choose auto or one of {', '.join(sorted(declared))}"
        )
    return torch_dtype(name)
