from typing import Any

import pytest
import torch
import transformers

from sglk.errors import ModelLoadError
from sglk.layers.rotary import RotaryEmbedding
from sglk.models.fields import Fields
from sglk.models.hf_config import spec_from_config
from sglk.testing.tiny import tiny_config

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}

SCALINGS = [
    pytest.param(None, 256, id="null"),
    pytest.param({"rope_type": "default"}, 256, id="default"),
    pytest.param({"type": "linear", "factor": 2}, 512, id="linear"),
    pytest.param({"rope_type": "dynamic", "factor": 2.0}, 512, id="dynamic"),
    pytest.param({"rope_type": "llama3", **LLAMA3}, 256, id="llama3"),
    pytest.param({"type": "yarn", **YARN}, 256, id="yarn"),
    pytest.param({"rope_type": "yarn", "factor": 4.0}, 1024, id="yarn without the original length"),
    pytest.param({"rope_type": "yarn", "type": "yarn", **YARN}, 256, id="both spellings, equal"),
    pytest.param({"rope_type": "yarn", **YARN, "attention_factor": 1.5}, 256, id="yarn attention factor"),
    pytest.param({"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, 256, id="yarn mscale"),
    pytest.param({"rope_type": "yarn", **YARN, "beta_fast": 16.0, "beta_slow": 2.0}, 256, id="yarn betas"),
    pytest.param({"type": "yarn", **YARN, "beta_slow": 0, "mscale": 1.0, "mscale_all_dim": 0}, 256, id="yarn zeros"),
]


def spec_of(**overrides: Any):
    config = tiny_config(**overrides)
    return spec_from_config(Fields(config, "config.json"), Fields({}, "generation_config.json"))


@pytest.mark.parametrize(("scaling", "context"), SCALINGS)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_angles_equal_those_of_transformers(key, scaling, context):
    spec = spec_of(**{key: scaling})
    config = transformers.LlamaConfig(**tiny_config(rope_scaling=scaling))
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    positions = torch.arange(201)
    cos, sin = theirs(torch.zeros(1), positions[None])

    ours = RotaryEmbedding(spec.head_dim, spec.rope_theta, spec.rope_scaling, torch.float32, torch.device("cpu"))
    ours_cos, ours_sin = ours(positions)

    torch.testing.assert_close(ours_cos, cos[0])
    torch.testing.assert_close(ours_sin, sin[0])
    assert spec.max_position_embeddings == context


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (
            {"type": "foo"},
            r"config.json: rope_scaling: `type` must be one of default, linear, dynamic, llama3, yarn, not 'foo'",
        ),
        ({"rope_type": "yarn", "type": "linear", "factor": 2.0}, r"`type` must be the same as `rope_type` \('yarn'\)"),
        ({"type": "longrope", "factor": 2.0}, "`type` must be one of default, .*, not 'longrope'"),
        ({"type": "linear"}, "rope_scaling: `factor` is missing"),
        ({"type": "dynamic"}, "rope_scaling: `factor` is missing"),
        ({"type": "linear", "factor": "2"}, "`factor` must be a positive number, not '2'"),
        ({"type": "linear", "factor": 0}, "`factor` must be a positive number, not 0"),
        ({"rope_type": "llama3", "factor": 8.0}, "`low_freq_factor` is missing"),
        ({"factor": 2.0}, "`rope_type` must be given beside `factor`"),
        ({"full_attention": {"rope_type": "default"}}, "a block per layer type is not supported"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial rotary embeddings are not supported"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "not supported\\), not 0.5"),
        ({"type": "linear", "factor": 0.5}, "rope_scaling: `factor` must be 1 or more, not 0.5"),
        ({"type": "yarn", "factor": 1e-9}, "rope_scaling: `factor` must be 1 or more, not 1e-09"),
        ("yarn", "`rope_scaling` must be an object or null"),
        (False, "`rope_scaling` must be an object or null"),
    ],
)
def test_unknown_or_contradictory_scaling_is_refused(scaling, message):
    with pytest.raises(ModelLoadError, match=message):
        spec_of(rope_scaling=scaling)


def test_yarn_needs_a_base_above_1():
    with pytest.raises(ModelLoadError, match=r"`rope_theta` must be above 1 for yarn \(it is 1\)"):
        spec_of(rope_theta=1.0, rope_scaling={"type": "yarn", "factor": 2.0})


def test_the_two_places_must_agree():
    with pytest.raises(ModelLoadError, match="same as in `rope_scaling`"):
        spec_of(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"factor": 4.0})
    with pytest.raises(ModelLoadError, match="`rope_theta` must be the same as outside"):
        spec_of(rope_theta=10000.0, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})

    with pytest.raises(ModelLoadError, match=r"`original_max_position_embeddings` must be the same as outside \(128\)"):
        spec_of(rope_scaling={"type": "yarn", **YARN}, original_max_position_embeddings=128)


def test_the_original_length_may_stand_outside():
    spec = spec_of(rope_scaling={"type": "yarn"}, original_max_position_embeddings=64)
    assert spec.rope_scaling == {"rope_type": "yarn", **YARN}
    assert spec.max_position_embeddings == 256


def test_settings_that_nobody_reads_are_told(caplog):
    spec_of(rope_scaling={"type": "yarn", "factor": 4.0, "orignal_max_position_embeddings": 64})
    assert "nothing is known of orignal_max_position_embeddings" in caplog.text


def test_partial_embeddings_are_refused_in_either_place():
    with pytest.raises(ModelLoadError, match=r"config.json: `partial_rotary_factor` must be 1 .* not 0\.5"):
        spec_of(partial_rotary_factor=0.5)


def test_dynamic_scaling_turns_a_single_pair():
    ours = RotaryEmbedding(
        2,
        10000.0,
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64},
        torch.float32,
        torch.device("cpu"),
    )
    positions = torch.tensor([3, 200])
    torch.testing.assert_close(ours(positions)[0][:, 0], positions.float().cos())


def test_theta_may_stand_in_rope_parameters_alone():
    spec = spec_of(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    assert spec.rope_theta == 5000.0


def test_dynamic_scaling_says_where_it_differs(caplog):
    spec = spec_of(rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=64)
    assert spec.rope_scaling == {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 64}
    assert "by its own position beyond 64" in caplog.text


def test_yarn_without_factor_takes_it_from_the_two_lengths():
    spec = spec_of(rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 64})
    assert spec.rope_scaling["factor"] == 4.0
