"""The architecture of a model, from whichever file described it."""

from dataclasses import dataclass, field
from typing import Any

from sglk.backends.schemes import Quantization


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Feed-forward blocks made of experts, of which each token visits a few; names as in config.json."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    """Whether the weights of a token's experts are scaled to sum to 1."""
    shared_expert_intermediate_size: int | None = None
    """Width of the expert that every token visits beside its own; None where there is none."""
    shared_expert_gate: bool = True
    """Whether a product of its own decides how much that expert counts."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that have one plain feed-forward block all the same."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1); names as in config.json.

    Keys and values of all heads are made from one short vector a token, which is all that is kept of it, beside one key
    that turns with its position.
    """

    kv_lora_rank: int
    """Width of that vector."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    """Width of that key, and of the part of every query that meets it."""
    v_head_dim: int
    q_lora_rank: int | None = None
    """Width of the vector that all queries are made from; None where they are made from the token itself."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Numbers that fix the shape of every weight and the maths around them; names as in Hugging Face's config.json."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """Of latent attention that of values."""
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    """Normalised: always with `rope_type`."""
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Bias on q, k and v projections."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    """Bias on the three projections of dense feed-forward blocks."""
    sliding_windows: tuple[int | None, ...] = ()
    """Tokens that a query of each layer sees, itself the last of them (None = all); empty where all layers see all."""
    moe: MoeSpec | None = None
    latent: LatentSpec | None = None
    """None where every key-value head keeps its keys and values."""
    quantization: Quantization = field(default_factory=Quantization)
    """How linear layers are quantised."""
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)
