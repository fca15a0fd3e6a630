"""What a config.json leaves unsaid, because the architecture's own configuration class fills it in. Needs no torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WindowRule:
    """How an architecture reads its sliding window."""

    switched: bool
    """Whether the window counts only where `use_sliding_window` is true."""
    default: int | None
    """Window where the file does not mention `sliding_window`; a null there means none."""
    layers: Literal["all", "from_max_window_layers", "even_below_max_window_layers"] = "all"
    """Layers that have it, where `layer_types` does not say."""


@dataclass(frozen=True)
class Family:
    """Defaults and fixed traits of one architecture, as its configuration class in transformers 5 has them."""

    head_dim: int | None = None
    """Head width where the file names none; None = hidden size / heads."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    bias: Literal["attention_bias", "qkv_bias", "qkv"] = "attention_bias"
    """The key that decides on biases: on q, k, v and the output, or on q, k and v alone; `qkv` = always on these."""
    window: WindowRule | None = None
    """None where the architecture knows no sliding window."""
    expert_width: str | None = None
    """Key of the experts' width; None = a dense architecture."""
    shared_expert: bool = False
    """Whether every token visits one more expert beside its own."""
    latent: bool = False
    """Whether attention is over latent vectors, and experts are described as DeepSeek does."""
    norm_topk_prob: bool | None = None
    """Whether a token's expert weights are scaled to sum to 1; None = the key of that name decides."""


_ALL_LAYERS = WindowRule(switched=True, default=4096)
_UPPER_LAYERS = WindowRule(switched=True, default=4096, layers="from_max_window_layers")
_EVEN_LAYERS = WindowRule(switched=True, default=4096, layers="even_below_max_window_layers")

FAMILIES = {
    "DeepseekV2ForCausalLM": Family(expert_width="moe_intermediate_size", latent=True),
    "DeepseekV3ForCausalLM": Family(expert_width="moe_intermediate_size", latent=True),
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(window=WindowRule(switched=False, default=4096)),
    "MixtralForCausalLM": Family(
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        window=WindowRule(switched=False, default=None),
        expert_width="intermediate_size",
        norm_topk_prob=True,
    ),
    "Qwen2ForCausalLM": Family(bias="qkv", window=_UPPER_LAYERS),
    "Qwen2MoeForCausalLM": Family(
        bias="qkv_bias", window=_EVEN_LAYERS, expert_width="moe_intermediate_size", shared_expert=True
    ),
    "Qwen3ForCausalLM": Family(head_dim=128, window=_UPPER_LAYERS),
    "Qwen3MoeForCausalLM": Family(window=_ALL_LAYERS, expert_width="moe_intermediate_size"),
}
"""By architecture as in config.json: those of `sglk.models.registry`, and others that only SGLang and vLLM serve."""
