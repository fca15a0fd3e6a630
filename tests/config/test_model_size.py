"""Counted sizes against the totals that the models' own weight files state."""

import pytest

from sglk.config.catalogue import models
from sglk.config.model_size import kv_elements_per_token, num_parameters
from sglk.config.schema import ModelConfig

# `total_parameters` or total_size / 2 of each public model.safetensors.index.json.
PUBLISHED = {
    "smollm2": 134_515_008,
    "qwen0_5b": 494_032_768,
    "qwen7b": 7_615_616_512,
    "qwen32b": 32_763_876_352,
    "qwen72b": 72_706_203_648,
    "qwen3_8b": 8_190_735_360,
    "qwen3_30b_a3b": 30_532_122_624,
    "llama3_8b": 8_030_261_248,
    "deepseek_v2_lite": 15_706_484_224,
    "mistral7b": 7_248_023_552,
    "mixtral8x7b": 46_702_792_704,
}
MODELS = {model.name: model for model in models().entries}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_the_architecture_numbers_give_the_published_number_of_weights(name: str, count: int) -> None:
    assert num_parameters(MODELS[name]) == count


def test_kv_per_token() -> None:
    assert kv_elements_per_token(MODELS["qwen32b"]) == 2 * 64 * 8 * 128
    assert kv_elements_per_token(MODELS["deepseek_v2_lite"]) == 27 * (512 + 64)


def test_an_unknown_shape_has_no_size() -> None:
    assert num_parameters(ModelConfig(name="local")) is None
    assert kv_elements_per_token(ModelConfig(name="local")) is None
