"""Random weights of a few hundred kilobytes for any supported architecture, under their Hugging Face names."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sglk.config.model_size import has_head_norms
from sglk.models.families import FAMILIES

Weight = npt.NDArray[np.float32]
Weights = dict[str, Weight]


def tiny_weights(config: Mapping[str, Any], seed: int = 0) -> Weights:
    """Return random fp32 weights for a config.json, the same for the same configuration and seed.

    Matrices have standard deviation 1/sqrt(fan-in), so that attention, routing and logits are far from uniform.
    """
    return _Drawing(config, seed).weights()


class _Drawing:
    """Draws tensor after tensor. Sizes by letter: E hidden, F feed-forward, H and K heads, D head width."""

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self.config = config
        self.architecture: str = config["architectures"][0]
        self.rng = np.random.default_rng(seed)
        self.E, self.F = config["hidden_size"], config["intermediate_size"]
        self.H, self.K = config["num_attention_heads"], config["num_key_value_heads"]
        self.D = config.get("head_dim") or self.E // self.H

    def weights(self) -> Weights:
        """Return all tensors of the model."""
        vocab = self.config["vocab_size"]
        weights = {"model.embed_tokens.weight": self.matrix(vocab, self.E) * np.float32(self.E**0.5)}
        for index in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{index}"
            weights[f"{layer}.input_layernorm.weight"] = self.vector(self.E, 1.0)
            weights |= self.attention(f"{layer}.self_attn")
            weights[f"{layer}.post_attention_layernorm.weight"] = self.vector(self.E, 1.0)
            weights |= self.feed_forward(layer, index)
            weights |= self.attention_biases(f"{layer}.self_attn")
        weights["model.norm.weight"] = self.vector(self.E, 1.0)
        if not self.config["tie_word_embeddings"]:
            weights["lm_head.weight"] = self.matrix(vocab, self.E)
        return weights

    def matrix(self, rows: int, columns: int) -> Weight:
        return np.asarray(self.rng.standard_normal((rows, columns)) / columns**0.5, np.float32)

    def vector(self, size: int, centre: float) -> Weight:
        return np.asarray(centre + 0.1 * self.rng.standard_normal(size), np.float32)

    def attention(self, name: str) -> Weights:
        weights = {
            f"{name}.q_proj.weight": self.matrix(self.H * self.D, self.E),
            f"{name}.k_proj.weight": self.matrix(self.K * self.D, self.E),
            f"{name}.v_proj.weight": self.matrix(self.K * self.D, self.E),
            f"{name}.o_proj.weight": self.matrix(self.E, self.H * self.D),
        }
        if has_head_norms(self.architecture):
            weights |= {f"{name}.{norm}.weight": self.vector(self.D, 1.0) for norm in ("q_norm", "k_norm")}
        return weights

    def attention_biases(self, name: str) -> Weights:
        rule = FAMILIES[self.architecture].bias
        if rule == "attention_bias" and not self.config.get("attention_bias"):
            return {}
        sizes = {"q_proj": self.H * self.D, "k_proj": self.K * self.D, "v_proj": self.K * self.D}
        if rule == "attention_bias":
            sizes["o_proj"] = self.E
        return {f"{name}.{part}.bias": self.vector(size, 0.0) for part, size in sizes.items()}

    def feed_forward(self, layer: str, index: int) -> Weights:
        config = self.config
        if self.architecture == "MixtralForCausalLM":
            return self.experts(f"{layer}.block_sparse_moe", config["num_local_experts"], self.F, ("w1", "w3", "w2"))
        sparse = (index + 1) % config.get("decoder_sparse_step", 1) == 0
        if "num_experts" not in config or not sparse or index in config.get("mlp_only_layers", ()):
            return self.gated(f"{layer}.mlp", self.F)
        weights = self.experts(f"{layer}.mlp", config["num_experts"], config["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in config:
            weights |= self.gated(f"{layer}.mlp.shared_expert", config["shared_expert_intermediate_size"])
            weights[f"{layer}.mlp.shared_expert_gate.weight"] = self.matrix(1, self.E)
        return weights

    def experts(
        self, name: str, count: int, width: int, projections: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    ) -> Weights:
        weights = {f"{name}.gate.weight": self.matrix(count, self.E)}
        for expert in range(count):
            weights |= self.gated(f"{name}.experts.{expert}", width, projections)
        return weights

    def gated(
        self, name: str, width: int, projections: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    ) -> Weights:
        gate, up, down = projections
        weights = {
            f"{name}.{gate}.weight": self.matrix(width, self.E),
            f"{name}.{up}.weight": self.matrix(width, self.E),
            f"{name}.{down}.weight": self.matrix(self.E, width),
        }
        if self.config.get("mlp_bias"):
            sizes = {gate: width, up: width, down: self.E}
            weights |= {f"{name}.{part}.bias": self.vector(size, 0.0) for part, size in sizes.items()}
        return weights
