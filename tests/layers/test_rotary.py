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
    positions = torch.arange(1001)
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1, 1, 128), positions.unsqueeze(0))
    rotary = RotaryEmbedding(32, theta, SCALINGS[kind], torch.float32, torch.device("cpu"))
    for got, want in zip(rotary(positions), expected, strict=True):
        # One rounding of a frequency is 1e-7 of it, and the angle is up to 1000 times that.
        torch.testing.assert_close(got, want[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_dynamic_angles_are_those_of_a_text_that_grows_token_by_token(factor: float) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "factor": factor, "rope_theta": 10000.0},
    )
    theirs = LlamaRotaryEmbedding(config)
    positions = torch.arange(400)
    expected = [theirs(torch.zeros(1, 1, 128), position.view(1, 1)) for position in positions]
    scaling = {"rope_type": "dynamic", "factor": factor, "original_max_position_embeddings": 64}
    rotary = RotaryEmbedding(32, 10000.0, scaling, torch.float32, torch.device("cpu"))
    for part, got in enumerate(rotary(positions)):
        torch.testing.assert_close(got, torch.cat([pair[part][0] for pair in expected]), atol=4e-5, rtol=0)
    # In any order and company, a position keeps its angles.
    shuffled = torch.tensor([399, 3, 70])
    for got, want in zip(rotary(shuffled), rotary(positions), strict=True):
        torch.testing.assert_close(got, want[shuffled], atol=1e-4, rtol=0)
