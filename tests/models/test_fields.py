import json

import pytest

from sglk.errors import ModelLoadError
from sglk.models.fields import Fields, read_json
from sglk.models.hf_config import read_spec
from sglk.models.tokenizer import read_tokenizer
from sglk.testing.tiny import tiny_config, write_tiny_model


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "intermediate_size", "num_attention_heads"])
def test_integers_that_no_model_has_are_refused(tmp_path, key):
    config = {**tiny_config(), key: 10**30}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=f"`{key}` must be a positive integer of at most 2147483647, not 1000"):
        read_spec(tmp_path)


@pytest.mark.parametrize("value", [10**9, 1e9])
@pytest.mark.parametrize(
    ("key", "architecture", "most"),
    [
        ("num_hidden_layers", "LlamaForCausalLM", 4096),
        ("head_dim", "LlamaForCausalLM", 16384),
        ("num_experts", "Qwen3MoeForCausalLM", 16384),
    ],
)
def test_counts_that_would_keep_the_reader_busy_for_ever_are_refused(tmp_path, key, architecture, most, value):
    config = {**tiny_config(architecture=architecture), key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=f"`{key}` must be a positive integer of at most {most}"):
        read_spec(tmp_path)


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), 0, -1.0, True, "1"])
def test_numbers_without_a_size_are_refused_and_shown_shortly(value):
    with pytest.raises(ModelLoadError, match="x: `eps` must be a positive number, not ") as caught:
        Fields({"eps": value}, "x").number("eps")
    assert len(str(caught.value)) < 140


def test_a_scale_beyond_all_contexts_is_refused(tmp_path):
    config = {**tiny_config(), "rope_scaling": {"rope_type": "linear", "factor": 1e308}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"`factor` must be a scale .* 2147483647 tokens or less, not 1e\+308"):
        read_spec(tmp_path)


def test_deep_nesting_is_refused(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}")
    with pytest.raises(ModelLoadError, match=r"config\.json is nested too deeply"):
        read_json(file)


def test_a_chat_template_that_is_no_text_is_refused(tmp_path):
    folder = write_tiny_model(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja: not UTF-8 text"):
        read_tokenizer(folder)
