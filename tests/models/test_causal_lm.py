"""Weights are read strictly: nothing is left at random, nothing is dropped in silence."""

import logging
from typing import Any

import numpy as np
import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.errors import ModelLoadError
from sglk.models.causal_lm import CausalLM
from sglk.models.registry import ARCHITECTURES, model_class
from sglk.testing.tiny import Weights, tiny_config, tiny_weights
from tests.models.greedy import ArrayWeights, Stepper, oracle, spec_of, tiny_runner

HEAD = "lm_head.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


def load(config: dict[str, Any], weights: Weights, dtype: torch.dtype = torch.float32) -> CausalLM:
    spec = spec_of(config)
    model = model_class(spec.architecture)(spec, CpuBackend(num_threads=1), dtype)
    model.load_weights(ArrayWeights(weights))
    return model


def test_every_missing_tensor_is_counted_and_named() -> None:
    weights = tiny_weights(tiny_config())
    del weights[DOWN], weights["model.norm.weight"]
    with pytest.raises(ModelLoadError, match=f"2 tensors missing: '{DOWN}', 'model.norm.weight'"):
        load(tiny_config(), weights)


def test_an_untied_model_needs_its_head() -> None:
    weights = tiny_weights(tiny_config())
    del weights[HEAD]
    with pytest.raises(ModelLoadError, match=f"1 tensor missing: '{HEAD}'"):
        load(tiny_config(), weights)


def test_a_wrong_shape_names_the_tensor_and_both_shapes() -> None:
    weights = tiny_weights(tiny_config())
    weights[DOWN] = weights[DOWN].T.copy()
    with pytest.raises(ModelLoadError, match=rf"'{DOWN}' has shape \[128, 64\], expected \[64, 128\]"):
        load(tiny_config(), weights)


def test_an_extra_tensor_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    weights = {**tiny_weights(tiny_config()), "extra.weight": np.zeros(3, np.float32)}
    with caplog.at_level(logging.WARNING):
        load(tiny_config(), weights)
    assert "1 tensor without a place in the model: 'extra.weight'" in caplog.text


def test_a_bias_that_would_be_ignored_is_an_error() -> None:
    weights = tiny_weights(tiny_config("Qwen2ForCausalLM"))
    with pytest.raises(ModelLoadError, match=r"6 tensors would be ignored by LlamaForCausalLM: .*k_proj.bias'"):
        load(tiny_config(), weights)


def test_a_tied_model_follows_its_configuration_over_a_different_head(caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_config(tie_word_embeddings=True)
    weights = tiny_weights(config)
    prompt = [1, 2, 3]
    with caplog.at_level(logging.WARNING):
        runner = tiny_runner(config, {**weights, HEAD: weights["model.embed_tokens.weight"] + 1})
    assert f"'{HEAD}' differs from the embedding and is ignored" in caplog.text
    stepper = Stepper(runner, 16, 4)
    stepper.prefill(stepper.add(prompt), 16)
    assert stepper.answer(0) == oracle(config, [prompt], 1)[0]


def test_a_tied_model_with_an_equal_head_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_config(tie_word_embeddings=True)
    weights = tiny_weights(config)
    with caplog.at_level(logging.WARNING):
        load(config, {**weights, HEAD: weights["model.embed_tokens.weight"]})
    assert not caplog.records


def test_weights_take_the_compute_dtype() -> None:
    model = load(tiny_config(), tiny_weights(tiny_config()), torch.bfloat16)
    assert {weight.tensor.dtype for weight in model.context.weights} == {torch.bfloat16}
    assert model.weights_bytes == sum(weight.tensor.nbytes for weight in model.context.weights)


def test_an_unknown_architecture_lists_the_supported_ones() -> None:
    with pytest.raises(ModelLoadError, match=r"'LLamaForCausalLM' is not supported.*did you mean") as caught:
        model_class("LLamaForCausalLM")
    assert all(name in str(caught.value) for name in ARCHITECTURES)
