"""Llama and the decoders built like it. Letters: T tokens, E hidden width, D head width."""

from typing import ClassVar

import torch

from sglk.attention.base import AttentionBackend
from sglk.backends.base import DeviceBackend
from sglk.layers.attention import SelfAttention
from sglk.layers.embedding import Embedding, OutputHead
from sglk.layers.mlp import GatedMLP
from sglk.layers.moe import SharedExpertMLP, SparseMLP
from sglk.layers.norm import ResidualNorm
from sglk.layers.rotary import RotaryEmbedding
from sglk.layers.weights import LayerContext
from sglk.models.causal_lm import CausalLM
from sglk.models.spec import ModelSpec
from sglk.parallel.ranks import ALONE, Ranks


class LlamaLayer:
    """Attention and feed-forward block, each with its norm before it; families differ in how they build the two."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer_id: int) -> None:
        name = f"model.layers.{layer_id}"
        self.layer_id = layer_id
        self.input_norm = ResidualNorm(context, f"{name}.input_layernorm", spec.hidden_size, spec.rms_norm_eps)
        self.attention = self.build_attention(context, spec, f"{name}.self_attn")
        self.attended = context.join(spec.hidden_size)
        self.mlp_norm = ResidualNorm(context, f"{name}.post_attention_layernorm", spec.hidden_size, spec.rms_norm_eps)
        self.mlp = self.build_mlp(context, spec, name)
        self.fed_forward = context.join(spec.hidden_size)

    def build_attention(
        self, context: LayerContext, spec: ModelSpec, name: str, head_norm_eps: float | None = None
    ) -> SelfAttention:
        """Return the attention block whose weights are called `name`.*."""
        return SelfAttention(
            context,
            name,
            self.layer_id,
            hidden_size=spec.hidden_size,
            num_heads=spec.num_attention_heads,
            num_kv_heads=spec.num_key_value_heads,
            head_dim=spec.head_dim,
            qkv_bias=spec.attention_bias,
            output_bias=spec.attention_output_bias,
            head_norm_eps=head_norm_eps,
        )

    def build_mlp(self, context: LayerContext, spec: ModelSpec, name: str) -> GatedMLP | SparseMLP | SharedExpertMLP:
        """Return the feed-forward block of the layer called `name`."""
        return GatedMLP(context, f"{name}.mlp", spec.hidden_size, spec.intermediate_size, spec.mlp_bias)


class LlamaForCausalLM(CausalLM):
    """Touvron et al. 2023, arXiv:2302.13971, with grouped key/value heads; the trunk of the other families too."""

    layer: ClassVar[type[LlamaLayer]] = LlamaLayer

    def __init__(self, spec: ModelSpec, backend: DeviceBackend, dtype: torch.dtype, ranks: Ranks = ALONE) -> None:
        super().__init__(spec, backend, dtype, ranks)
        context = self.context
        self.embedding = Embedding(context, "model.embed_tokens", spec.vocab_size, spec.hidden_size)
        tied = self.embedding.weight if spec.tie_word_embeddings else None
        # Before the layers, for weights are read in this order: what reading the largest takes beside them comes first.
        self.head = OutputHead(context, "lm_head", spec.vocab_size, spec.hidden_size, tied)
        self.layers = [self.layer(context, spec, layer_id) for layer_id in range(spec.num_hidden_layers)]
        self.norm = ResidualNorm(context, "model.norm", spec.hidden_size, spec.rms_norm_eps)
        self.following_norms = [*(layer.input_norm for layer in self.layers[1:]), self.norm]
        self.rotary = RotaryEmbedding(spec.head_dim, spec.rope_theta, spec.rope_scaling, dtype, backend.device)

    def trunk(self, ids_T: torch.Tensor, positions_T: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        """Return x_TE; see the base class."""
        cos_TD, sin_TD = self.rotary(positions_T)
        residual_TE = self.embedding(ids_T)
        x_TE = self.layers[0].input_norm(residual_TE)
        for layer, next_norm in zip(self.layers, self.following_norms, strict=True):
            attended_TE = layer.attention(x_TE, cos_TD, sin_TD, attention)
            x_TE, residual_TE = layer.mlp_norm.add(layer.attended(attended_TE), residual_TE)
            x_TE, residual_TE = next_norm.add(layer.fed_forward(layer.mlp(x_TE)), residual_TE)
        return x_TE
