"""Folders as transformers 5 writes them: its spellings in config.json, and experts apart or stacked."""

from pathlib import Path

import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.models.hf_config import read_spec
from sglk.models.registry import model_class
from sglk.models.safetensors_weights import SafetensorsWeights
from tests.models.greedy import ARCHITECTURES, ArrayWeights, spec_of, tiny_weights, transformers_model


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    """Return every weight on the device, by the names of its parts."""
    spec = read_spec(folder)
    model = model_class(spec.architecture)(spec, CpuBackend(num_threads=1), torch.float32)
    model.load_weights(SafetensorsWeights(folder))
    return {weight.parts[0][0]: weight.tensor for weight in model.context.weights}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_both_spellings_describe_the_same_model(name: str, tmp_path: Path) -> None:
    transformers_model(ARCHITECTURES[name]).config.save_pretrained(tmp_path)
    assert "rope_parameters" in (tmp_path / "config.json").read_text()
    assert read_spec(tmp_path) == spec_of(ARCHITECTURES[name])


@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe-mixed", "qwen3-moe"])
def test_experts_apart_and_stacked_are_the_same_weights(name: str, original: bool, tmp_path: Path) -> None:
    transformers_model(ARCHITECTURES[name]).save_pretrained(tmp_path, save_original_format=original)
    stacked = any(key.endswith("experts.gate_up_proj") for key in SafetensorsWeights(tmp_path).names())
    assert stacked != original
    spec = spec_of(ARCHITECTURES[name])
    model = model_class(spec.architecture)(spec, CpuBackend(num_threads=1), torch.float32)
    model.load_weights(ArrayWeights(tiny_weights(ARCHITECTURES[name])))
    expected = {weight.parts[0][0]: weight.tensor for weight in model.context.weights}
    got = loaded(tmp_path)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[part], tensor) for part, tensor in expected.items())
