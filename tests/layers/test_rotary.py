"""Angles equal those of transformers for every kind of scaling."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from sglk.layers.rotary import RotaryEmbedding

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-tuned": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
    },
}


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("kind", SCALINGS)
def test_angles(kind: str, theta: float) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={**SCALINGS[kind], "rope_theta": theta},
    )
    positions = torch.arange(201)
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1, 1, 128), positions.unsqueeze(0))
    rotary = RotaryEmbedding(32, theta, SCALINGS[kind], torch.float32, torch.device("cpu"))
    for got, want in zip(rotary(positions), expected, strict=True):
        # One rounding of a frequency is 1e-7 of it, and the angle is up to 200 times that.
        torch.testing.assert_close(got, want[0], atol=2e-5, rtol=0)
