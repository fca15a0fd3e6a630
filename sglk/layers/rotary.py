"""Rotary position angles and the scalings that stretch them. Letters: T tokens, D head width, R = D / 2 pairs."""

import math
from collections.abc import Mapping
from typing import Any

import torch


class RotaryEmbedding:
    """Cosines and sines of the positions of a step, computed once for all layers."""

    def __init__(
        self, head_dim: int, theta: float, scaling: Mapping[str, Any] | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        frequencies_R, self.amplitude = scaled_frequencies(head_dim, theta, scaling)
        # Of both halves: on a processor copies would cost more than angles do.
        self.frequencies_D = frequencies_R.repeat(2).to(device)
        self.dtype = dtype
        self._dynamic: DynamicFrequencies | None = None
        if scaling is not None and scaling["rope_type"] == "dynamic":
            self._dynamic = DynamicFrequencies(head_dim, theta, scaling, device)

    def __call__(self, positions_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos_TD and sin_TD, each angle twice, for the half-split order of GPT-NeoX."""
        frequencies = self.frequencies_D if self._dynamic is None else self._dynamic(positions_T)
        angles_TD = positions_T.unsqueeze(1) * frequencies
        cos_TD, sin_TD = angles_TD.cos(), angles_TD.sin()
        if self.amplitude != 1.0:
            cos_TD, sin_TD = cos_TD * self.amplitude, sin_TD * self.amplitude
        return cos_TD.to(self.dtype), sin_TD.to(self.dtype)


class DynamicFrequencies:
    """Frequencies that slow down once a text outgrows the trained length (NTK-aware scaling, u/emozilla 2023).

    They depend on the length of the text at the moment a token is computed. Here that length is the token's own
    position + 1, whatever is computed beside it, so that keys in the cache fit every text that begins alike. Within
    the trained length, and for tokens generated one by one beyond it, this is what transformers computes; of a prompt
    beyond it transformers turns all tokens by the length of the whole prompt.
    """

    def __init__(self, head_dim: int, theta: float, scaling: Mapping[str, Any], device: torch.device) -> None:
        self.theta, self.factor = theta, float(scaling["factor"])
        self.trained_length = int(scaling["original_max_position_embeddings"])
        # A single pair turns by 1 whatever the base.
        self.growth = head_dim / max(1, head_dim - 2)
        self.exponents_D = pair_exponents(head_dim).repeat(2).to(device)

    def __call__(self, positions_T: torch.Tensor) -> torch.Tensor:
        """Return the frequencies of each token, frequencies_TD."""
        lengths_T = (positions_T + 1).clamp(min=self.trained_length)
        stretch_T = self.factor * lengths_T / self.trained_length - (self.factor - 1)
        thetas_T = self.theta * stretch_T**self.growth
        return 1.0 / thetas_T.unsqueeze(1) ** self.exponents_D


def pair_exponents(head_dim: int) -> torch.Tensor:
    """Return 0, 2/D, 4/D, ...: a pair turns by theta to the power of minus its exponent at each position."""
    return torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim


def scaled_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> tuple[torch.Tensor, float]:
    """Return the frequency of each pair (radians per position, fp32) and the factor on cosines and sines.

    `scaling` is a normalised `rope_scaling` of config.json: kinds `default`, `linear`, `llama3`, `yarn`, and `dynamic`,
    whose frequencies within the trained length these are.
    """
    frequencies_R = 1.0 / theta ** pair_exponents(head_dim)
    if scaling is None or scaling["rope_type"] in ("default", "dynamic"):
        return frequencies_R, 1.0
    if scaling["rope_type"] == "linear":
        return frequencies_R / scaling["factor"], 1.0
    if scaling["rope_type"] == "llama3":
        return _llama3(frequencies_R, scaling), 1.0
    assert scaling["rope_type"] == "yarn", scaling
    return _yarn(frequencies_R, head_dim, theta, scaling), _yarn_amplitude(scaling)


def _llama3(frequencies_R: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Slow pairs are stretched, fast ones kept, those between blended (Llama 3.1 reference code)."""
    turns_R = int(scaling["original_max_position_embeddings"]) * frequencies_R / (2 * math.pi)
    low, high, factor = (float(scaling[key]) for key in ("low_freq_factor", "high_freq_factor", "factor"))
    kept_R = ((turns_R - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept_R) * frequencies_R / factor + kept_R * frequencies_R


def _yarn(frequencies_R: torch.Tensor, head_dim: int, theta: float, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Blend between the pairs that turn `beta_fast` and `beta_slow` times (Peng et al. 2023, arXiv:2309.00071)."""
    original, factor = int(scaling["original_max_position_embeddings"]), float(scaling["factor"])

    def pair_of(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of(scaling.get("beta_fast", 32.0)), pair_of(scaling.get("beta_slow", 1.0))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    stretched_R = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return frequencies_R / factor * stretched_R + frequencies_R * (1 - stretched_R)


def _yarn_amplitude(scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor = float(scaling["factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return _mscale(factor, scaling["mscale"]) / _mscale(factor, scaling["mscale_all_dim"])
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
