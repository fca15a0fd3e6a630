"""Self-attention with grouped key/value heads and rotary positions.

Letters: T tokens, E hidden width, H query heads, K key/value heads, D head width.
"""

import torch

from sglk.attention.base import AttentionBackend
from sglk.backends import reference
from sglk.layers.linear import Linear
from sglk.layers.weights import LayerContext


class SelfAttention:
    """Projects, rotates, attends and projects back."""

    def __init__(
        self,
        context: LayerContext,
        name: str,
        layer_id: int,
        *,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        qkv_bias: bool,
        output_bias: bool,
    ) -> None:
        self.layer_id = layer_id
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        outputs = {
            f"{name}.q_proj": num_heads * head_dim,
            f"{name}.k_proj": num_kv_heads * head_dim,
            f"{name}.v_proj": num_kv_heads * head_dim,
        }
        self.qkv = Linear(context, outputs, hidden_size, bias=qkv_bias)
        self.output = Linear(context, {f"{name}.o_proj": hidden_size}, num_heads * head_dim, bias=output_bias)
        self._rope = context.op(reference.rope, head_dim=head_dim)

    def __call__(
        self, x_TE: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        """Return the layer's contribution y_TE; keys and values go to where `attention` keeps them."""
        heads = self.qkv(x_TE).view(len(x_TE), -1, self.head_dim)
        values_from = self.num_heads + self.num_kv_heads
        # Queries and keys lie side by side, so one call rotates both.
        rotated = self._rope(heads[:, :values_from], cos_TD, sin_TD)
        q_THD, k_TKD, v_TKD = rotated[:, : self.num_heads], rotated[:, self.num_heads :], heads[:, values_from:]
        out_THD = attention.forward(self.layer_id, q_THD, k_TKD, v_TKD)
        return self.output(out_THD.flatten(1))
