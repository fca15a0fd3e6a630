"""A quantised model that is split over ranks rounds as it does in one piece: what differs is the order of sums."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.errors import ConfigError
from sglk.testing.tiny import write_tiny_model
from tests.parallel.in_threads import from_files
from tests.quantization.answers import load, logits

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
