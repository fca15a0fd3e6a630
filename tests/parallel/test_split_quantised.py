"""A quantised model that is split over ranks rounds as it does in one piece: what differs is the order of sums."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sglk.backends.quantised import QuantisedMatrix, full_precision
from sglk.engine.rank_runner import RankRunner
from sglk.errors import ConfigError
from sglk.testing.tiny import write_tiny_model
from tests.parallel.in_threads import from_files
from tests.quantization import checkpoints
from tests.quantization.answers import load, logits
from tests.quantization.checkpoints import Tensors, write_pair
from tests.quantization.test_checkpoints import GPTQ, compressed, eight_bit, few_bits, floats

Quantise = Callable[[np.ndarray], tuple[Tensors, np.ndarray]]

THREE: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 192, "shared_expert_intermediate_size": 192}


def differences(path: Path, size: int, kv_cache_dtype: str = "fp32", **runtime: Any) -> torch.Tensor:
    """Return the largest difference of logits between ranks and one piece, by position; all ranks say the same."""
    whole_TV = logits(load(path, **runtime), kv_cache_dtype=kv_cache_dtype)
    parts = from_files(path, size, lambda part: logits(part.runner.model, kv_cache_dtype=kv_cache_dtype), **runtime)
    assert all(torch.equal(part, parts[0]) for part in parts)
    assert torch.equal(parts[0].argmax(-1), whole_TV.argmax(-1))
    return (parts[0] - whole_TV).abs().amax(-1)


def assert_same(differences_T: torch.Tensor) -> None:
    """A sum in another order may push a number over a border between two rounded ones, which happens to few tokens."""
    assert float(differences_T.median()) < 1e-5
    assert float(differences_T.max()) < 0.1


@pytest.mark.parametrize("scheme", ["w8a8", "w8a16", "w4a16", "fp8"])
@pytest.mark.parametrize(
    ("architecture", "size"),
    [("LlamaForCausalLM", 2), ("Qwen3ForCausalLM", 3), ("MixtralForCausalLM", 4), ("Qwen2MoeForCausalLM", 3)],
)
def test_weights_are_rounded_before_they_are_split(tmp_path: Path, architecture: str, size: int, scheme: str) -> None:
    widths = THREE if size == 3 else {"hidden_size": 128, "intermediate_size": 256}
    experts = EXPERTS if "Qwen2Moe" in architecture else {}
    folder = write_tiny_model(tmp_path, architecture=architecture, **widths, **experts)
    assert_same(differences(folder, size, quantization=scheme))


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_keys_and_values_are_rounded_head_by_head(tmp_path: Path, kv_cache_dtype: str) -> None:
    assert_same(differences(write_tiny_model(tmp_path, **THREE), 3, kv_cache_dtype, quantization="w8a16"))


def test_a_split_through_groups_with_a_scale_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"^runtime\.tp_size=4 would cut groups of 32 inputs that share a scale in w8a8: "
        r"'model\.layers\.0\.self_attn\.o_proj\.weight' of 'tiny' has 64 inputs; allowed: 1, 2$",
    ):
        from_files(folder, 4, lambda part: part, quantization="w8a8")
    assert_same(differences(folder, 4, quantization="w8a16"))


CHANNEL = {"num_bits": 8, "type": "int", "strategy": "channel"}


@pytest.mark.parametrize(
    ("settings", "quantise", "architecture"),
    [
        (
            GPTQ | {"group_size": 32, "desc_act": True, "sym": False},
            few_bits(checkpoints.gptq, 32, False, shuffled=True),
            "Llama",
        ),
        (
            GPTQ | {"bits": 8, "group_size": 64, "desc_act": True, "sym": False},
            few_bits(checkpoints.gptq, 64, False, shuffled=True, bits=8),
            "Qwen2",
        ),
        (
            compressed("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=32),
            few_bits(checkpoints.packed, 32, True, shuffled=True),
            "Mixtral",
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, few_bits(checkpoints.awq, 32, False), "Qwen3Moe"),
        (compressed("int-quantized", True, **CHANNEL), eight_bit, "Qwen3"),
        (compressed("int-quantized", True, **CHANNEL), eight_bit, "Mixtral"),
        (
            {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [48, 32]},
            floats((48, 32), "weight_scale_inv"),
            "Llama",
        ),
    ],
    ids=["gptq-act-order", "gptq8-act-order", "packed-experts", "awq-experts", "w8a8", "w8a8-experts", "fp8-blocks"],
)
def test_quantised_checkpoints_are_split_as_they_are(
    tmp_path: Path, settings: dict[str, Any], quantise: Quantise, architecture: str
) -> None:
    widths = THREE | ({"moe_intermediate_size": 192} if "Moe" in architecture else {})
    quantised, _ = write_pair(tmp_path, settings, quantise, architecture=f"{architecture}ForCausalLM", **widths)
    assert_same(differences(quantised, 3))


def test_a_rank_has_its_inputs_of_an_act_order_layer_and_all_of_its_scales(tmp_path: Path) -> None:
    settings = GPTQ | {"group_size": 32, "desc_act": True, "sym": False}
    quantised, _ = write_pair(tmp_path, settings, few_bits(checkpoints.gptq, 32, False, shuffled=True), **THREE)
    (product,) = load(quantised).layers[0].mlp.down.products
    whole = product.weight.matrix

    def down(part: RankRunner) -> QuantisedMatrix:
        (summed,) = part.runner.model.layers[0].mlp.down.products
        return summed.product.weight.matrix

    parts = from_files(quantised, 3, down)
    assert torch.equal(torch.cat([full_precision(part) for part in parts], dim=1), full_precision(whole))
    assert [part.values.nbytes for part in parts] == [whole.values.nbytes // 3] * 3
    assert all(torch.equal(part.scales_OG, whole.scales_OG) for part in parts)
