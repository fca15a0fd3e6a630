"""Models with experts whose weights are quantised."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from sglk.backends import cpu_quantised
from sglk.backends.moe_ops import run_experts
from sglk.backends.quantise import quantise_fp8, quantise_int4, quantise_int8
from sglk.backends.quantised import dequantise
from sglk.backends.quantised_moe import run_quantised_experts
from sglk.layers.experts import Experts, QuantisedExperts
from sglk.testing.tiny import write_tiny_model
from tests.quantization import checkpoints
from tests.quantization.answers import load, logits
from tests.quantization.checkpoints import Tensors, grid, write_pair
from tests.quantization.test_checkpoints import assert_equal_to_twin
from tests.quantization.test_on_load import BOUNDS

EXPERTS, HIDDEN, WIDTH, TOP_K = 5, 64, 48, 2


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


QUANTISERS = {
    "w8a16": lambda weight: quantise_int8(weight, weight.shape[1]),
    "w4a16": lambda weight: quantise_int4(weight, 16, symmetric=False),
    "fp8": lambda weight: quantise_fp8(weight, weight.shape[1]),
}


def visits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, and the experts that they visit, one of which nobody does."""
    ids = torch.tensor([[0, 1], [1, 3], [3, 0], [1, 0]])
    return randn(4, HIDDEN, seed=3), randn(4, TOP_K, seed=4).softmax(-1), ids


@pytest.mark.parametrize("scheme", QUANTISERS)
def test_experts_are_those_of_the_dequantised_weights(scheme: str) -> None:
    gate_up = QUANTISERS[scheme](randn(EXPERTS * 2 * WIDTH, HIDDEN) / 8)
    down = QUANTISERS[scheme](randn(EXPERTS * HIDDEN, WIDTH, seed=1) / 7)
    x, weights, ids = visits()
    expected = run_experts.reference(
        x, dequantise(gate_up).view(EXPERTS, -1, HIDDEN), dequantise(down).view(EXPERTS, HIDDEN, -1), weights, ids
    )
    for run in (run_quantised_experts.reference, cpu_quantised.run_experts_by_blocks):
        torch.testing.assert_close(run(x, gate_up, down, weights, ids, EXPERTS, scheme), expected, rtol=1e-4, atol=1e-5)


def test_int8_experts_of_the_cpu_are_those_of_the_reference_in_any_company() -> None:
    gate_up = quantise_int8(randn(EXPERTS * 2 * WIDTH, HIDDEN) / 8, HIDDEN)
    down = quantise_int8(randn(EXPERTS * HIDDEN, WIDTH, seed=1) / 7, WIDTH)
    x, weights, ids = visits()
    expected = run_quantised_experts.reference(x, gate_up, down, weights, ids, EXPERTS, "w8a8")
    y = cpu_quantised.run_experts_w8a8(x, gate_up, down, weights, ids, EXPERTS, "w8a8")
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    alone = cpu_quantised.run_experts_w8a8(x[:1], gate_up, down, weights[:1], ids[:1], EXPERTS, "w8a8")
    assert torch.equal(alone, y[:1])


@pytest.mark.parametrize("scheme", BOUNDS)
@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"])
def test_experts_are_rounded_on_load(tmp_path: Path, architecture: str, scheme: str) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture)
    plain, rounded = load(folder), load(folder, quantization=scheme)
    assert rounded.weights_bytes < 0.6 * plain.weights_bytes
    expected = logits(plain)
    # A token at the border between two experts may go to the other one, so only the middle is close.
    errors = (logits(rounded) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert 1e-4 < float(errors.median()) < 2 * BOUNDS[scheme]


@pytest.mark.parametrize("shuffled", [False, True])
def test_gptq_experts_compute_what_their_numbers_say(
    tmp_path: Path, shuffled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seeds = iter(range(1000))

    def quantise(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        made = grid(weight, 32, symmetric=False)
        if shuffled:
            made.shuffle(seed=next(seeds))
        return checkpoints.gptq(made), made.weight_OE

    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": shuffled}
    quantised, twin = write_pair(tmp_path, settings, quantise, architecture="Qwen3MoeForCausalLM")
    with caplog.at_level(logging.WARNING):
        model = load(quantised)
    assert type(model.layers[0].mlp.experts) is (Experts if shuffled else QuantisedExperts)
    assert ("take the memory of full precision" in caplog.text) == shuffled
    if shuffled:
        torch.testing.assert_close(logits(model), logits(load(twin)), rtol=1e-4, atol=1e-4)
    else:
        assert_equal_to_twin(quantised, twin, "w4a16")
