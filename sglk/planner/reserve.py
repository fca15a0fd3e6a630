"""Memory beside weights and KV pool: an estimate of what a step works in, and what the runtime itself takes."""

from sglk.config.schema import RuntimeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.models.part import part_of_spec
from sglk.models.spec import ModelSpec
from sglk.planner.dtypes import BYTES
from sglk.planner.latent import working_width

RUNTIME_BYTES = 512 * 2**20
"""A driver's context, libraries and tables; SGLang 0.5.18 sets as much aside (`_handle_gpu_memory_settings`)."""

_LOGIT_COPY = 4
"""Logits are sampled from in fp32."""


def activation_bytes(spec: ModelSpec, runtime: RuntimeConfig, dtype: str) -> int:
    """Return about how much the largest step of one of `tp_size` ranks works in.

    Per token: the residual and a block's input, and the widest block's values, which are alive together (a gated
    feed-forward block has gate, up and their product; an expert's block once for each expert of a token). Per running
    request: its logits. Kernels' own workspaces come on top.
    """
    part, item = part_of_spec(spec, ranks_of(runtime)), BYTES[dtype]
    tokens = max(runtime.max_prefill_tokens, runtime.max_running_requests)
    if runtime.chunked_prefill_size == -1:
        tokens = max(tokens, runtime.context_length or spec.max_position_embeddings)
    numbers = 2 * part.hidden_size + max(_attention(part), 3 * _width(part))
    logits = runtime.max_running_requests * part.vocab_size * (item + _LOGIT_COPY)
    return tokens * numbers * item + logits


def _attention(part: ModelSpec) -> int:
    """Return the numbers of one token's queries, keys, values and results."""
    if part.latent is not None:
        return working_width(part, part.latent)
    return 2 * (part.num_attention_heads + part.num_key_value_heads) * part.head_dim


def _width(part: ModelSpec) -> int:
    """Return the inner width that one token passes through in its widest layer."""
    moe = part.moe
    if moe is None:
        return part.intermediate_size
    sparse = moe.num_experts_per_tok * moe.moe_intermediate_size + (moe.shared_expert_intermediate_size or 0)
    return max(sparse, part.intermediate_size if moe.dense_layers else 0)
