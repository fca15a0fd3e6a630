"""The architecture of a model, from whichever file described it."""

from dataclasses import dataclass, field
from typing import Any


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
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    """Normalised: always with `rope_type`."""
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Bias on q, k and v projections."""
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)
