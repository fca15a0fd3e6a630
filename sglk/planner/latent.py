"""What multi-head latent attention takes on one device, as SGLang and vLLM lay it out.

Sources: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1 and appendix C; `DeepseekV2AttentionMLA` of SGLang 0.5.18 and
`DeepseekV2MLAAttention` of vLLM 0.32.0. Both have the projections to the short vectors, and the pool of those, in full
on every rank; heads are divided.
"""

from collections.abc import Iterator

from sglk.models.spec import LatentSpec, ModelSpec

TO_HEADS = "kv_b_proj"
"""The matrix from the vector to the keys and values of heads."""


def matrices(part: ModelSpec, latent: LatentSpec) -> Iterator[tuple[str, int, int]]:
    """Yield name, outputs and inputs of the linear layers of one layer's attention on a rank that has `part`."""
    hidden, heads = part.hidden_size, part.num_attention_heads
    queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    if latent.q_lora_rank is None:
        yield "q_proj", queries, hidden
    else:
        yield "q_a_proj", latent.q_lora_rank, hidden
        yield "q_b_proj", queries, latent.q_lora_rank
    yield "kv_a_proj_with_mqa", vector_width(latent), hidden
    yield TO_HEADS, heads * (latent.qk_nope_head_dim + latent.v_head_dim), latent.kv_lora_rank
    yield "o_proj", hidden, heads * latent.v_head_dim


def absorbed(part: ModelSpec, latent: LatentSpec) -> int:
    """Return the numbers of the matrix from the vector to keys and values, which a layer may have twice.

    Both engines multiply queries and results with it while they decode, in the compute dtype (`w_kc` and `w_vc` in
    SGLang's `post_load_weights`, `W_UK_T` and `W_UV` in vLLM's `MLAAttention`). SGLang copies it for that; vLLM's are
    views of a matrix in full precision, and further memory where it has to be dequantised.
    """
    return part.num_attention_heads * (latent.qk_nope_head_dim + latent.v_head_dim) * latent.kv_lora_rank


def head_widths(latent: LatentSpec) -> frozenset[int]:
    """Return how many outputs, or inputs, of each projection that is divided by heads belong to one head."""
    plain = latent.qk_nope_head_dim
    return frozenset({plain + latent.qk_rope_head_dim, plain + latent.v_head_dim, latent.v_head_dim})


def norm_width(latent: LatentSpec) -> int:
    """Return the numbers of a layer's norms of its short vectors."""
    return latent.kv_lora_rank + (latent.q_lora_rank or 0)


def vector_width(latent: LatentSpec) -> int:
    """Return the numbers that the pool keeps of one token and layer: no keys and values of heads."""
    return latent.kv_lora_rank + latent.qk_rope_head_dim


def working_width(part: ModelSpec, latent: LatentSpec) -> int:
    """Return the numbers of one token's queries, keys, values and results on a rank, as prompts are computed."""
    return part.num_attention_heads * 2 * (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim)
