"""Bytes that one token leaves in the KV pool of one device, as `sglk.cache.kv.KVLayout` lays it out."""

from sglk.errors import ConfigError
from sglk.models.part import part_of_spec
from sglk.models.spec import ModelSpec
from sglk.planner.dtypes import BYTES
from sglk.planner.latent import vector_width

_SCALE = 4
"""fp32, one for each int8 key and each int8 value of a head."""


def kv_bytes_per_token(spec: ModelSpec, dtype: str, ranks: int) -> int:
    """Return 2 (key and value) x layers x a rank's key-value heads x (head width x bytes per number + scale).

    Key-value heads fewer than ranks are copied: from there on more ranks save no KV memory. Of latent attention every
    rank has one vector a layer. Raises ConfigError where that cannot be in `dtype`.
    """
    if spec.latent is not None:
        return spec.num_hidden_layers * vector_width(spec.latent) * _latent_bytes(dtype)
    head = spec.head_dim * BYTES[dtype] + (_SCALE if dtype == "int8" else 0)
    return 2 * spec.num_hidden_layers * part_of_spec(spec, ranks).num_key_value_heads * head


def takes(spec: ModelSpec, dtype: str) -> bool:
    """Return whether the pool of that model can be in `dtype`."""
    return spec.latent is None or dtype != "int8"


def _latent_bytes(dtype: str) -> int:
    if dtype == "int8":
        raise ConfigError("runtime.kv_cache_dtype=int8 is not known of latent attention; write auto, or another dtype")
    return BYTES[dtype]
