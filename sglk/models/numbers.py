"""The spec of a model of which only the configuration's numbers are at hand. Needs no torch."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sglk.config.schema import ModelConfig
from sglk.errors import ModelLoadError
from sglk.models.fields import MOST_LAYERS, Fields
from sglk.models.hf_config import spec_from_config
from sglk.models.spec import ModelSpec


def spec_from_numbers(model: ModelConfig, reason: str = "for load_format=dummy") -> ModelSpec:
    """Return what the numbers of `model` describe; raises ModelLoadError, which says why they are needed."""
    numbers: Mapping[str, Any] = asdict(model)
    origin = f"model={model.name} has no files here, and {reason} its numbers are needed"
    if model.architecture is None:
        raise ModelLoadError(f"{origin}: `architecture` is missing; give model.path=<folder or .gguf file>")
    implied = {
        "architectures": [model.architecture],
        "mlp_only_layers": list(range(min(model.first_dense_layers, MOST_LAYERS))),
        # Windows are no numbers of planning; only files say them.
        "sliding_window": None,
    }
    if model.kv_lora_rank is not None:
        implied |= _latent(model)
    if model.num_shared_experts and model.moe_intermediate_size:
        implied["shared_expert_intermediate_size"] = model.num_shared_experts * model.moe_intermediate_size
    return spec_from_config(Fields({**numbers, **implied}, origin), Fields({}, origin))


def _latent(model: ModelConfig) -> dict[str, Any]:
    """Return the numbers of latent attention and of DeepSeek's experts under their names in config.json."""
    return {
        "qk_nope_head_dim": model.head_dim if model.qk_nope_head_dim is None else model.qk_nope_head_dim,
        "v_head_dim": model.head_dim if model.v_head_dim is None else model.v_head_dim,
        "n_routed_experts": model.num_experts,
        "n_shared_experts": model.num_shared_experts,
        "first_k_dense_replace": model.first_dense_layers,
    }
