"""Architecture numbers from a Hugging Face folder: config.json and generation_config.json."""

import logging
from pathlib import Path

from sglk.models.fields import Fields, read_json, read_json_if_present
from sglk.models.registry import check_architecture
from sglk.models.rope_scaling import normalise_rope
from sglk.models.spec import ModelSpec

logger = logging.getLogger(__name__)

_BIASED_ARCHITECTURES = frozenset({"Qwen2ForCausalLM"})
"""Architectures whose q, k and v projections carry a bias whatever config.json says."""


def read_spec(folder: Path) -> ModelSpec:
    """Return the spec of the model in `folder`; raises ModelLoadError naming the file and the key at fault."""
    config = read_json(folder / "config.json")
    generation = read_json_if_present(folder / "generation_config.json")
    return spec_from_config(config, generation)


def spec_from_config(config: Fields, generation: Fields) -> ModelSpec:
    """Return the spec that the contents of config.json and generation_config.json describe."""
    architecture = _architecture(config)
    _refuse_unsupported(config)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of `num_attention_heads` ({heads})")
    if not config.has("head_dim") and hidden % heads:
        raise config.wrong("hidden_size", f"a multiple of `num_attention_heads` ({heads}) where `head_dim` is absent")
    theta, scaling, context = normalise_rope(config)
    return ModelSpec(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=config.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=config.integer("head_dim", hidden // heads),
        vocab_size=config.integer("vocab_size"),
        max_position_embeddings=_within_window(config, context),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        attention_bias=config.flag("attention_bias", False) or architecture in _BIASED_ARCHITECTURES,
        bos_token_id=min(config.token_ids("bos_token_id"), default=None),
        eos_token_ids=config.token_ids("eos_token_id") | generation.token_ids("eos_token_id"),
    )


def _architecture(config: Fields) -> str:
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config.wrong("architectures", "a list with a class name, such as ['LlamaForCausalLM']")
    # First of all: a foreign configuration also lacks keys, and that is not what its owner wants to hear.
    check_architecture(names[0])
    return names[0]


def _refuse_unsupported(config: Fields) -> None:
    """Refuse what would load and then compute something else than the model's authors meant."""
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise config.wrong("hidden_act", "'silu'")
    if config.flag("mlp_bias", False):
        raise config.wrong("mlp_bias", "false (biases in the MLP are not supported)")
    if config.has("quantization_config"):
        raise config.wrong("quantization_config", "absent: quantised checkpoints cannot be loaded yet")


def _within_window(config: Fields, context: int) -> int:
    """Cut the context to the sliding window: up to there, full attention and windowed attention are the same."""
    windowed = config.flag("use_sliding_window", config.values.get("model_type") == "mistral")
    # Absent is not null here: the configuration classes of these families fill in 4096.
    if not windowed or config.values.get("sliding_window", 4096) is None:
        return context
    window = config.integer("sliding_window", 4096)
    if window >= context:
        return context
    logger.warning("%s: context cut from %d to the sliding window of %d tokens", config.origin, context, window)
    return window
