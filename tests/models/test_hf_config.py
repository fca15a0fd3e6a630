import json
import logging

import pytest

from sglk.errors import ModelLoadError
from sglk.models.hf_config import read_spec
from sglk.testing.tiny import tiny_config, write_json


def write_config(folder, **overrides):
    config = {key: value for key, value in tiny_config(**overrides).items() if value != "absent"}
    write_json(folder / "config.json", config)
    return folder


def test_numbers_are_read(tmp_path):
    spec = read_spec(write_config(tmp_path))
    assert (spec.hidden_size, spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim) == (64, 4, 2, 16)
    assert (spec.vocab_size, spec.max_position_embeddings, spec.rms_norm_eps) == (320, 256, 1e-5)
    assert (spec.bos_token_id, spec.eos_token_ids) == (256, {257})
    assert not spec.tie_word_embeddings
    assert not spec.attention_bias


def test_absent_heads_have_their_defaults(tmp_path):
    spec = read_spec(write_config(tmp_path, num_key_value_heads="absent", head_dim=None))
    assert (spec.num_key_value_heads, spec.head_dim) == (4, 16)


def test_head_dim_may_differ_from_the_quotient(tmp_path):
    assert read_spec(write_config(tmp_path, head_dim=32)).head_dim == 32


def test_qwen2_has_biases_without_saying_so(tmp_path):
    assert read_spec(write_config(tmp_path, architecture="Qwen2ForCausalLM")).attention_bias


def test_generation_config_adds_end_tokens(tmp_path):
    write_config(tmp_path, eos_token_id=257)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [257, 259]})
    assert read_spec(tmp_path).eos_token_ids == {257, 259}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hidden_size": "absent"}, "config.json: `hidden_size` is missing"),
        ({"hidden_size": "64"}, "config.json: `hidden_size` must be a positive integer, not '64'"),
        ({"hidden_size": True}, "`hidden_size` must be a positive integer, not True"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` must be a positive integer, not 0"),
        ({"rms_norm_eps": "1e-5"}, "`rms_norm_eps` must be a positive number"),
        ({"tie_word_embeddings": "no"}, "`tie_word_embeddings` must be true or false"),
        ({"architectures": []}, "`architectures` must be a list with a class name"),
        ({"num_key_value_heads": 3}, r"`num_key_value_heads` must be a divisor of `num_attention_heads` \(4\), not 3"),
        ({"hidden_size": 66}, "`hidden_size` must be a multiple of `num_attention_heads`"),
        ({"eos_token_id": "2"}, "`eos_token_id` must be a token id or a list of them"),
        ({"hidden_act": "gelu"}, "`hidden_act` must be 'silu', not 'gelu'"),
        ({"mlp_bias": True}, "`mlp_bias`"),
        ({"quantization_config": {"quant_method": "awq"}}, "`quantization_config`.*cannot be loaded yet"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path, overrides, message):
    with pytest.raises(ModelLoadError, match=message) as raised:
        read_spec(write_config(tmp_path, **overrides))
    assert str(tmp_path / "config.json") in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["{", "", "[1]"])
def test_damaged_json_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_spec(tmp_path)


def test_a_sliding_window_limits_the_context(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        spec = read_spec(write_config(tmp_path, architecture="MistralForCausalLM", sliding_window=128))
    assert spec.max_position_embeddings == 128
    assert "sliding window" in caplog.text
    assert read_spec(write_config(tmp_path, architecture="MistralForCausalLM", sliding_window=None)) == read_spec(
        write_config(tmp_path, architecture="MistralForCausalLM")
    )


def test_an_unused_sliding_window_does_not(tmp_path):
    write_config(tmp_path, architecture="Qwen2ForCausalLM", sliding_window=128, use_sliding_window=False)
    assert read_spec(tmp_path).max_position_embeddings == 256


def test_json_integers_written_as_floats_are_taken(tmp_path):
    write_config(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"hidden_size": 64', '"hidden_size": 64.0'))
    assert json.loads((tmp_path / "config.json").read_text())["hidden_size"] == 64.0
    assert read_spec(tmp_path).hidden_size == 64


def test_a_foreign_architecture_is_said_before_its_missing_keys(tmp_path):
    write_json(tmp_path / "config.json", {"architectures": ["GPT2LMHeadModel"], "n_embd": 768})
    with pytest.raises(ModelLoadError, match="'GPT2LMHeadModel' is not supported; supported are LlamaForCausalLM"):
        read_spec(tmp_path)


def test_no_other_architecture_is_offered_in_its_place(tmp_path):
    write_json(tmp_path / "config.json", {"architectures": ["Qwen3ForCausalLM"]})
    with pytest.raises(ModelLoadError, match="'Qwen3ForCausalLM' is not supported") as raised:
        read_spec(tmp_path)
    assert "did you mean" not in str(raised.value)
