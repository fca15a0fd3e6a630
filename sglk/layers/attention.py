"""Self-attention with grouped key/value heads and rotary positions.

Letters: T tokens, E hidden width, H query heads, K key/value heads, D head width.
"""

import torch

from sglk.attention.base import AttentionBackend
from sglk.backends import reference
from sglk.layers.linear import Linear, OutputLinear
from sglk.layers.norm import RMSNorm
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
        head_norm_eps: float | None = None,
    ) -> None:
        """With `head_norm_eps` each query and key head is normalised before it is rotated."""
        self.layer_id = layer_id
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        outputs = {
            f"{name}.q_proj": num_heads * head_dim,
            f"{name}.k_proj": num_kv_heads * head_dim,
            f"{name}.v_proj": num_kv_heads * head_dim,
        }
        self.qkv = Linear(context, outputs, hidden_size, bias=qkv_bias)
        self.output = OutputLinear(context, f"{name}.o_proj", hidden_size, num_heads * head_dim, output_bias)
        self.head_norms: tuple[RMSNorm, RMSNorm] | None = None
        if head_norm_eps is not None:
            self.head_norms = (
                RMSNorm(context, f"{name}.q_norm", head_dim, head_norm_eps),
                RMSNorm(context, f"{name}.k_norm", head_dim, head_norm_eps),
            )
        self._rope = context.op(reference.rope, head_dim=head_dim)

    def __call__(
        self, x_TE: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        """Return this rank's part of the contribution y_TE; keys and values go to where `attention` keeps them."""
        heads = self.qkv(x_TE).view(len(x_TE), -1, self.head_dim)
        values_from = self.num_heads + self.num_kv_heads
        q_THD, k_TKD = self._rotate(heads[:, :values_from], cos_TD, sin_TD)
        out_THD = attention.forward(self.layer_id, q_THD, k_TKD, heads[:, values_from:])
        return self.output(out_THD.flatten(1))

    def _rotate(
        self, heads: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return q_THD and k_TKD from the query and key heads, which lie side by side."""
        if self.head_norms is None:
            rotated = self._rope(heads, cos_TD, sin_TD)
            return rotated[:, : self.num_heads], rotated[:, self.num_heads :]
        q_norm, k_norm = self.head_norms
        q_THD, k_TKD = q_norm(heads[:, : self.num_heads]), k_norm(heads[:, self.num_heads :])
        return self._rope(q_THD, cos_TD, sin_TD), self._rope(k_TKD, cos_TD, sin_TD)
