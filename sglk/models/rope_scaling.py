"""Scaling of rotary positions: one spelling out of the several that configuration files use."""

import logging
from typing import Any

from sglk.models.fields import MOST, Fields

logger = logging.getLogger(__name__)

REQUIRED_KEYS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Known kinds of scaling and the numbers that each must have."""

_OPTIONAL_NUMBERS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_ZERO_IS_ABSENT = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""Numbers of yarn whose 0 stands for their default; published files hold such."""

_KNOWN = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "truncate",
    *(key for keys in REQUIRED_KEYS.values() for key in keys),
    *_OPTIONAL_NUMBERS,
}


def normalise_rope(config: Fields, default_theta: float = 10000.0) -> tuple[float, dict[str, Any] | None, int]:
    """Return (rope_theta, rope_scaling, context length in tokens) of a config.json.

    Takes `rope_theta` with `rope_scaling`, or `rope_parameters` as transformers 5 writes it, with the kind under
    `rope_type` or `type`. Scaling is None for the default kind; otherwise it has `rope_type`, and
    `original_max_position_embeddings` for the kinds that use it. Unknown or contradictory settings raise
    ModelLoadError: a model that silently runs without its scaling talks nonsense past its first window.
    """
    rope = _rope_fields(config)
    theta = rope.number("rope_theta", config.number("rope_theta", default_theta))
    if config.has("rope_theta") and theta != config.number("rope_theta"):
        raise rope.wrong("rope_theta", f"the same as outside (`rope_theta` = {config.values['rope_theta']})")
    for fields in (rope, config):
        if fields.number("partial_rotary_factor", 1.0) != 1.0:
            raise fields.wrong("partial_rotary_factor", "1 (partial rotary embeddings are not supported)")
    trained = config.integer("max_position_embeddings")
    kind = _kind(rope)
    if kind == "yarn" and theta <= 1:
        raise rope.wrong("rope_theta", f"above 1 for yarn (it is {theta:g})")
    if unknown := rope.values.keys() - _KNOWN:
        logger.warning("%s: nothing is known of %s; it changes no token here", rope.origin, ", ".join(sorted(unknown)))
    if kind == "default":
        return theta, None, trained
    scaling = _scaling(rope, kind, _original(config, rope), trained)
    context = _context(scaling, trained)
    if context > MOST:
        raise rope.wrong("factor", f"a scale that keeps the context at {MOST} tokens or less")
    return theta, scaling, int(context)


def _rope_fields(config: Fields) -> Fields:
    """Merge `rope_scaling` and `rope_parameters`; where both are given they must agree key by key."""
    merged: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        block = config.values.get(name)
        block = {} if block is None else block
        if not isinstance(block, dict):
            raise config.wrong(name, "an object or null")
        for key, value in block.items():
            if isinstance(value, dict):
                raise config.wrong(name, "one object for all layers (a block per layer type is not supported)")
            if key in merged and merged[key] != value:
                raise config.wrong(f"{name}.{key}", f"the same as in `rope_scaling` ({merged[key]!r})")
            merged[key] = value
    name = "rope_scaling" if config.has("rope_scaling") else "rope_parameters"
    return Fields(merged, f"{config.origin}: {name}")


def _kind(rope: Fields) -> str:
    spellings = {key: rope.text(key) for key in ("rope_type", "type") if rope.has(key)}
    if len(set(spellings.values())) > 1:
        raise rope.wrong("type", f"the same as `rope_type` ({spellings['rope_type']!r})")
    if not spellings:
        if rope.has("factor"):
            raise rope.wrong("rope_type", f"given beside `factor`: one of {', '.join(REQUIRED_KEYS)}")
        return "default"
    key, kind = next(iter(spellings.items()))
    if kind not in REQUIRED_KEYS:
        raise rope.wrong(key, f"one of {', '.join(REQUIRED_KEYS)}")
    return kind


def _original(config: Fields, rope: Fields) -> int | None:
    """Return the length that the model was trained with before it was stretched, from either place that states it."""
    key = "original_max_position_embeddings"
    stated = [fields.integer(key) for fields in (rope, config) if fields.has(key)]
    if len(set(stated)) > 1:
        raise rope.wrong(key, f"the same as outside ({stated[1]})")
    return stated[0] if stated else None


def _scaling(rope: Fields, kind: str, original: int | None, trained: int) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": kind}
    if kind == "dynamic":
        scaling["original_max_position_embeddings"] = trained
        logger.warning(
            "%s: dynamic scaling turns each token by its own position beyond %d, so that cached prefixes stay valid; "
            "transformers turns a longer prompt by its whole length and so gives other tokens; consider yarn",
            rope.origin,
            trained,
        )
    if kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = original or trained
    for key in REQUIRED_KEYS[kind]:
        scaling[key] = rope.number(key, trained / original if kind == "yarn" and original else None)
    if scaling["factor"] < 1:
        raise rope.wrong("factor", "1 or more")
    if kind == "yarn":
        zeros = {key for key in _ZERO_IS_ABSENT if rope.values.get(key) == 0}
        scaling |= {key: rope.number(key) for key in _OPTIONAL_NUMBERS if rope.has(key) and key not in zeros}
        if rope.has("truncate"):
            scaling["truncate"] = rope.flag("truncate", True)
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise rope.wrong("low_freq_factor", f"less than `high_freq_factor` ({scaling['high_freq_factor']})")
    return scaling


def _context(scaling: dict[str, Any], trained: int) -> float:
    """Return the context that the scaling reaches; Llama 3 files already state the scaled length."""
    if scaling["rope_type"] == "llama3":
        return trained
    context: float = scaling.get("original_max_position_embeddings", trained) * scaling["factor"]
    return context
