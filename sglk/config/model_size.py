"""Parameters and KV size of a model, counted from its architecture numbers."""

from sglk.config.schema import ModelConfig

_HEAD_NORMS = frozenset({"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"})


def has_head_norms(architecture: str | None) -> bool:
    """Return whether an architecture normalises each head's query and key (Qwen Team 2025, arXiv:2505.09388)."""
    return architecture in _HEAD_NORMS


def num_parameters(model: ModelConfig) -> int | None:
    """Return the number of weights, embeddings included, or None when the architecture is not known.

    Counted as Hugging Face's implementations lay the weights out (norms and biases included).
    """
    hidden, layers, vocab = model.hidden_size, model.num_hidden_layers, model.vocab_size
    if hidden is None or layers is None or vocab is None:
        return None
    embeddings = vocab * hidden * (1 if model.tie_word_embeddings else 2)
    norms = (2 * layers + 1) * hidden
    dense_layers = layers if not model.num_experts else min(model.first_dense_layers, layers)
    mlps = dense_layers * 3 * hidden * (model.intermediate_size or 0) + (layers - dense_layers) * _moe(model, hidden)
    return embeddings + norms + layers * _attention(model, hidden) + mlps


def kv_elements_per_token(model: ModelConfig) -> int | None:
    """Return how many numbers the KV pool keeps per token over all layers, or None when the shape is not known."""
    layers = model.num_hidden_layers
    if layers is None:
        return None
    if model.kv_lora_rank is not None:
        # Multi-head latent attention keeps the compressed vector and one rotary key for all heads.
        return layers * (model.kv_lora_rank + (model.qk_rope_head_dim or 0))
    if model.num_key_value_heads is None or model.head_dim is None:
        return None
    return 2 * layers * model.num_key_value_heads * model.head_dim


def _attention(model: ModelConfig, hidden: int) -> int:
    heads, head_dim = model.num_attention_heads or 0, model.head_dim or 0
    if model.kv_lora_rank is not None:
        return _latent_attention(model, hidden, heads, model.kv_lora_rank)
    kv_heads = model.num_key_value_heads or heads
    projected = (heads + 2 * kv_heads) * head_dim
    bias = projected if model.attention_bias else 0
    head_norms = 2 * head_dim if has_head_norms(model.architecture) else 0
    return hidden * projected + bias + head_norms + heads * head_dim * hidden


def _latent_attention(model: ModelConfig, hidden: int, heads: int, rank: int) -> int:
    rope, values = model.qk_rope_head_dim or 0, model.v_head_dim or model.head_dim or 0
    plain, compressed = model.qk_nope_head_dim or model.head_dim or 0, model.q_lora_rank
    queries = heads * (plain + rope)
    query = hidden * queries if compressed is None else compressed * (hidden + 1 + queries)
    return query + hidden * (rank + rope) + rank * (1 + heads * (plain + values)) + heads * values * hidden


def _moe(model: ModelConfig, hidden: int) -> int:
    experts = model.num_experts or 0
    router = hidden * experts
    return router + 3 * hidden * (model.moe_intermediate_size or 0) * (experts + (model.num_shared_experts or 0))
