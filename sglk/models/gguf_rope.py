"""Rotary settings of a GGUF file, under the names of config.json.

What the keys mean is what llama.cpp does with them (`load_hparams` in llama-model.cpp, `rope_yarn` in ggml-cpu).
"""

import math
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType

from sglk.errors import ModelLoadError
from sglk.models.fields import Fields
from sglk.models.gguf_file import GgufFile, shortest

FACTORS = "rope_freqs.weight"
"""A tensor that is part of the spec, not a weight."""
_LONGROPE_FACTORS = "rope_factors_long.weight"

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every published Llama 3.x uses; GGUF files keep only the resulting factors."""

_FIXED = {"yarn_log_multiplier": (0.0,), "yarn_ext_factor": (1.0, -1.0), "yarn_attn_factor": (1.0, -1.0)}
"""Settings of yarn that only other families change, and the values that change nothing."""


def read_rope(file: GgufFile, kind: str, head_dim: int) -> Fields:
    """Return `rope_theta`, `max_position_embeddings` and `rope_scaling` of a model of the architecture `kind`.

    Raises ModelLoadError where the file asks for a scaling that would be left out.
    """
    metadata = Fields(file.metadata, str(file.path))
    theta = metadata.number(f"{kind}.rope.freq_base", 10000.0)
    config: dict[str, Any] = {
        "rope_theta": theta,
        "max_position_embeddings": metadata.integer(f"{kind}.context_length"),
    }
    scaling = _stated_scaling(metadata, kind)
    if _LONGROPE_FACTORS in file.tensors or (scaling and FACTORS in file.tensors):
        name = FACTORS if scaling else _LONGROPE_FACTORS
        raise ModelLoadError(f"{file.path}: tensor {name!r} scales positions in a way that is not supported")
    if FACTORS in file.tensors:
        scaling = _llama3_scaling(file, theta, head_dim)
    return Fields({**config, "rope_scaling": scaling}, str(file.path))


def _stated_scaling(metadata: Fields, kind: str) -> dict[str, Any] | None:
    """Return the scaling that the metadata states; a factor without a kind is linear."""
    old_key, prefix = f"{kind}.rope.scale_linear", f"{kind}.rope.scaling"
    factor = metadata.values.get(f"{prefix}.factor", metadata.values.get(old_key))
    scaled = factor not in (None, 0, 1)
    name = metadata.text(f"{prefix}.type", "linear" if scaled else "none")
    if name == "none" or (name == "linear" and not scaled):
        return None
    scaling = {
        "rope_type": name,
        "factor": factor,
        "original_max_position_embeddings": metadata.values.get(f"{prefix}.original_context_length"),
    }
    amplitude = metadata.number(f"{prefix}.attn_factor", 1.0)
    if name == "yarn":
        return scaling | _yarn(metadata, prefix, amplitude, factor)
    if amplitude != 1:
        raise metadata.wrong(f"{prefix}.attn_factor", f"1 for {name}")
    return scaling


def _yarn(metadata: Fields, prefix: str, amplitude: float, factor: Any) -> dict[str, Any]:
    for key, neutral in _FIXED.items():
        if metadata.values.get(f"{prefix}.{key}", neutral[0]) not in neutral:
            raise metadata.wrong(f"{prefix}.{key}", f"{neutral[0]:g} (it is not supported)")
    names = {"beta_fast": f"{prefix}.yarn_beta_fast", "beta_slow": f"{prefix}.yarn_beta_slow"}
    settings = {ours: metadata.number(theirs) for ours, theirs in names.items() if metadata.has(theirs)}
    # llama.cpp multiplies the usual amplitude of yarn by this; config.json states the product.
    if amplitude != 1 and isinstance(factor, int | float) and factor > 0:
        settings["attention_factor"] = amplitude * (1 + 0.1 * math.log(factor))
    return settings


def _llama3_scaling(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Return the Llama 3 scaling whose factors the file carries; any other set is refused."""
    is_fp32 = file.tensors[FACTORS].type == GGMLQuantizationType.F32
    stored = file.raw(FACTORS).view(np.float32).ravel() if is_fp32 else np.zeros(0, np.float32)
    greatest = float(stored.max(initial=1.0))
    if math.isfinite(greatest):
        scaling = {"rope_type": "llama3", "factor": shortest(greatest), **_LLAMA3}
        expected = llama3_divisors(scaling, theta, head_dim)
        if stored.shape == expected.shape and np.allclose(stored, expected, rtol=1e-3):
            return scaling
    raise ModelLoadError(f"{file.path}: tensor {FACTORS!r} is not a Llama 3 scaling; no other kind is known")


def llama3_divisors(scaling: dict[str, Any], theta: float, head_dim: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return what Llama 3 scaling divides each of the head_dim/2 rotary frequencies by.

    Source: apply_scaling in meta-llama/llama-models, models/llama3/model.py.
    """
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))
