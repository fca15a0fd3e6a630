"""What multi-head latent attention takes on one device, as SGLang and vLLM lay it out.

Sources: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1 and appendix C; `DeepseekV2AttentionMLA` of SGLang 0.5.18 and
`DeepseekV2MLAAttention` of vLLM 0.32.0. Both have the projections to the short vectors, and the pool of those, in full
on every rank; heads are divided.
"""

from collections.abc import Iterator

from sglk.models.spec import LatentSpec, ModelSpec


def matrices(part: ModelSpec, latent: LatentSpec) -> Iterator[tuple[int, int]]:
    """Yield outputs and inputs of the linear layers of one layer's attention on a rank that has `part`."""
    hidden, heads = part.hidden_size, part.num_attention_heads
    queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    if latent.q_lora_rank is None:
        yield queries, hidden
    else:
        yield latent.q_lora_rank, hidden
        yield queries, latent.q_lora_rank
    yield vector_width(latent), hidden
    yield heads * (latent.qk_nope_head_dim + latent.v_head_dim), latent.kv_lora_rank
    yield hidden, heads * latent.v_head_dim


def absorbed(part: ModelSpec, latent: LatentSpec) -> int:
    """Return the numbers of the matrix from the vector to keys and values, which a layer has twice.

    Both engines multiply queries and results with it while they decode, and for that keep it once more in the compute
    dtype (`w_kc` and `w_vc` in SGLang's `post_load_weights`, `W_UK_T` and `W_UV` in vLLM's `MLAAttention`).
    """
    return part.num_attention_heads * (latent.qk_nope_head_dim + latent.v_head_dim) * latent.kv_lora_rank


def norm_width(latent: LatentSpec) -> int:
    """Return the numbers of a layer's norms of its short vectors."""
    return latent.kv_lora_rank + (latent.q_lora_rank or 0)


def vector_width(latent: LatentSpec) -> int:
    """Return the numbers that the pool keeps of one token and layer: no keys and values of heads."""
    return latent.kv_lora_rank + latent.qk_rope_head_dim


def working_width(part: ModelSpec, latent: LatentSpec) -> int:
    """Return the numbers of one token's queries, keys, values and results on a rank, as prompts are computed."""
    return part.num_attention_heads * 2 * (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim)
