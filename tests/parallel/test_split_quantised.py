"""A model that is split over ranks computes the bits that it does in one piece."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sglk.backends.quantised import QuantisedMatrix, full_precision
from sglk.engine.rank_runner import RankRunner
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


def assert_same_bits(path: Path, size: int, kv_cache_dtype: str = "fp32", **runtime: Any) -> None:
    """All logits of all ranks are those of one piece."""
    whole_TV = logits(load(path, **runtime), kv_cache_dtype=kv_cache_dtype)
    parts = from_files(path, size, lambda part: logits(part.runner.model, kv_cache_dtype=kv_cache_dtype), **runtime)
    assert [torch.equal(part_TV, whole_TV) for part_TV in parts] == [True] * size


@pytest.mark.parametrize(
    ("architecture", "size", "scheme"),
    [
        *(("LlamaForCausalLM", 2, scheme) for scheme in ("w8a8", "w4a16")),
        *(("Qwen3ForCausalLM", 3, scheme) for scheme in ("w8a16", "fp8")),
        *(("MixtralForCausalLM", 4, scheme) for scheme in ("w8a8", "w8a16", "w4a16", "fp8")),
        *(("Qwen2MoeForCausalLM", 3, scheme) for scheme in ("w8a8", "w4a16")),
    ],
)
def test_weights_are_rounded_before_they_are_split(tmp_path: Path, architecture: str, size: int, scheme: str) -> None:
    widths = THREE if size == 3 else {"hidden_size": 128, "intermediate_size": 256}
    experts = EXPERTS if "Qwen2Moe" in architecture else {}
    folder = write_tiny_model(tmp_path, architecture=architecture, **widths, **experts)
    assert_same_bits(folder, size, quantization=scheme)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_keys_and_values_are_rounded_head_by_head(tmp_path: Path, kv_cache_dtype: str) -> None:
    assert_same_bits(write_tiny_model(tmp_path, **THREE), 3, kv_cache_dtype, quantization="w8a16")


ODD: dict[str, Any] = {**THREE, "hidden_size": 100, "intermediate_size": 42}
"""Neither outputs nor inputs fill what kernels take at once, and ranks have unlike numbers of outputs."""


@pytest.mark.parametrize(
    ("architecture", "size", "widths", "scheme", "dtype"),
    [
        ("LlamaForCausalLM", 4, {}, None, "fp16"),
        ("Qwen3MoeForCausalLM", 4, {}, None, "bf16"),
        ("MixtralForCausalLM", 2, {}, "w8a8", "bf16"),
        ("LlamaForCausalLM", 3, ODD, None, "fp32"),
        ("LlamaForCausalLM", 3, {**ODD, "num_key_value_heads": 1, "head_dim": 12}, "w8a16", "fp32"),
        ("Qwen2MoeForCausalLM", 3, {**ODD, **EXPERTS, "moe_intermediate_size": 42}, None, "fp32"),
        ("MixtralForCausalLM", 3, ODD, "w8a8", "fp16"),
        ("MixtralForCausalLM", 3, ODD, "w4a16", "fp32"),
    ],
    ids=lambda value: "sizes" if isinstance(value, dict) else None,
)
def test_bits_are_those_of_one_piece(
    tmp_path: Path, architecture: str, size: int, widths: dict[str, Any], scheme: str | None, dtype: str
) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture, **widths)
    assert_same_bits(folder, size, dtype, quantization=scheme, dtype=dtype)


def test_ranks_may_add_what_each_has_instead(tmp_path: Path) -> None:
    """Sums in another order, which nothing rounds afterwards."""
    folder = write_tiny_model(tmp_path, **THREE)
    runtime = {"quantization": "w8a16", "enable_deterministic_inference": False}
    whole_TV = logits(load(folder, **runtime))
    first_TV, *others = from_files(folder, 3, lambda part: logits(part.runner.model), **runtime)
    assert all(torch.equal(other_TV, first_TV) for other_TV in others)
    assert not torch.equal(first_TV, whole_TV)
    assert float((first_TV - whole_TV).abs().max()) < 1e-4


def test_groups_with_a_scale_are_never_cut(tmp_path: Path) -> None:
    """Each of four ranks has 16 of the inputs of `o_proj`, of which 32 share a scale."""
    folder = write_tiny_model(tmp_path)
    assert_same_bits(folder, 4, quantization="w4a16", enable_deterministic_inference=False)


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
    assert_same_bits(quantised, 3)


def test_a_rank_has_its_outputs_of_an_act_order_layer(tmp_path: Path) -> None:
    settings = GPTQ | {"group_size": 32, "desc_act": True, "sym": False}
    quantised, _ = write_pair(tmp_path, settings, few_bits(checkpoints.gptq, 32, False, shuffled=True), **THREE)
    (product,) = load(quantised).layers[0].mlp.down.products
    whole = product.weight.matrix

    def down(part: RankRunner) -> QuantisedMatrix:
        (product,) = part.runner.model.layers[0].mlp.down.products
        return product.weight.matrix

    # Even where the ranks would rather add what each has.
    parts = from_files(quantised, 3, down, enable_deterministic_inference=False)
    assert torch.equal(torch.cat([full_precision(part) for part in parts]), full_precision(whole))
    assert [part.values.nbytes for part in parts] == [whole.values.nbytes // 3] * 3
