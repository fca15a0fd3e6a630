"""Names and shapes of a model's weights as a checkpoint stores them, from the spec alone."""

from sglk.models.spec import ModelSpec


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return Hugging Face name to shape for a dense decoder of the Llama family (Llama, Mistral, Qwen2)."""
    hidden, inner, head_dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q_width, kv_width = spec.num_attention_heads * head_dim, spec.num_key_value_heads * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, q_width),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if spec.attention_bias:
        layer |= {
            "self_attn.q_proj.bias": (q_width,),
            "self_attn.k_proj.bias": (kv_width,),
            "self_attn.v_proj.bias": (kv_width,),
        }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    for index in range(spec.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return shapes
