import json

import pytest

from sglk.errors import ModelLoadError
from sglk.models.families import FAMILIES
from sglk.models.hf_config import read_spec
from sglk.models.registry import ARCHITECTURES
from sglk.testing.tiny import tiny_config, write_json


def write_config(folder, **overrides):
    config = {key: value for key, value in tiny_config(**overrides).items() if value != "absent"}
    write_json(folder / "config.json", config)
    return folder


def test_every_architecture_has_its_defaults():
    assert {name for name, family in FAMILIES.items() if not family.latent} == ARCHITECTURES.keys()


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


@pytest.mark.parametrize(
    ("family", "overrides", "biases"),
    [
        ("Llama", {}, (False, False)),
        ("Llama", {"attention_bias": True}, (True, True)),
        ("Qwen2", {}, (True, False)),
        ("Qwen2Moe", {}, (True, False)),
        ("Qwen2Moe", {"qkv_bias": False}, (False, False)),
        ("Qwen3", {"attention_bias": True}, (True, True)),
    ],
)
def test_biases_on_the_inputs_and_the_output_of_attention(tmp_path, family, overrides, biases):
    spec = read_spec(write_config(tmp_path, architecture=f"{family}ForCausalLM", **overrides))
    assert (spec.attention_bias, spec.attention_output_bias) == biases


def test_absent_numbers_are_those_of_the_family(tmp_path):
    absent = {"head_dim": "absent", "rms_norm_eps": "absent", "rope_theta": "absent"}
    mixtral = read_spec(write_config(tmp_path, architecture="MixtralForCausalLM", **absent))
    assert (mixtral.head_dim, mixtral.rms_norm_eps, mixtral.rope_theta) == (16, 1e-5, 1e6)
    qwen3 = read_spec(write_config(tmp_path, architecture="Qwen3ForCausalLM", **absent))
    assert (qwen3.head_dim, qwen3.rms_norm_eps, qwen3.rope_theta) == (128, 1e-6, 1e4)


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
        ({"head_dim": 15}, "`head_dim` must be such that heads are of even width .*, and they are 15 wide, not 15"),
        (
            {"hidden_size": 12},
            "`hidden_size` must be such that heads are of even width .*, and they are 3 wide, not 12",
        ),
        ({"eos_token_id": "2"}, "`eos_token_id` must be a token id or a list of them"),
        ({"hidden_act": "gelu"}, "`hidden_act` must be 'silu', not 'gelu'"),
        ({"mlp_bias": "no"}, "`mlp_bias` must be true or false"),
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


LONG = {"max_position_embeddings": 8192}
SWITCHED = {"use_sliding_window": True, "sliding_window": 128, "num_hidden_layers": 4}
EVEN_FULL = ["sliding_attention" if layer % 2 else "full_attention" for layer in range(4)]


@pytest.mark.parametrize(
    ("family", "overrides", "windows"),
    [
        ("Llama", {"sliding_window": 128}, ()),
        ("Mistral", {"sliding_window": 128}, (128, 128)),
        ("Mistral", {}, ()),
        ("Mistral", LONG, (4096, 4096)),
        ("Mistral", {**LONG, "sliding_window": None}, ()),
        ("Mixtral", LONG, ()),
        ("Mixtral", {"sliding_window": 128}, (128, 128)),
        ("Qwen2", {"sliding_window": 128}, ()),
        ("Qwen2", {**SWITCHED, "max_window_layers": 2}, (None, None, 128, 128)),
        ("Qwen2", {**SWITCHED, "max_window_layers": 0}, (128, 128, 128, 128)),
        ("Qwen2", SWITCHED, ()),
        ("Qwen3", {**SWITCHED, "layer_types": EVEN_FULL}, (None, 128, None, 128)),
        ("Qwen2Moe", SWITCHED, (128, None, 128, None)),
        ("Qwen3Moe", SWITCHED, (128, 128, 128, 128)),
        ("Qwen3Moe", {**SWITCHED, "sliding_window": 256}, ()),
    ],
)
def test_every_family_has_its_rule_for_windows(tmp_path, family, overrides, windows):
    spec = read_spec(write_config(tmp_path, architecture=f"{family}ForCausalLM", **overrides))
    assert spec.sliding_windows == windows
    assert spec.max_position_embeddings == overrides.get("max_position_embeddings", 256)


def test_experts_are_read_under_either_name(tmp_path):
    given = read_spec(write_config(tmp_path, architecture="Qwen3MoeForCausalLM")).moe
    assert (given.num_experts, given.num_experts_per_tok, given.moe_intermediate_size) == (6, 2, 32)
    write_config(tmp_path, architecture="Qwen3MoeForCausalLM", num_experts="absent", num_local_experts=6)
    assert read_spec(tmp_path).moe == given


def test_layers_without_experts_are_counted_as_the_family_does(tmp_path):
    write_config(
        tmp_path,
        architecture="Qwen2MoeForCausalLM",
        num_hidden_layers=6,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    )
    assert read_spec(tmp_path).moe.dense_layers == {0, 2, 3, 4}


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        (
            "Mixtral",
            {"num_experts_per_tok": 7},
            r"`num_experts_per_tok` must be at most `num_local_experts` \(6\), not 7",
        ),
        ("Qwen2Moe", {"num_experts_per_tok": 7}, r"`num_experts_per_tok` must be at most `num_experts` \(6\), not 7"),
        ("Qwen3Moe", {"num_experts": "absent"}, "`num_local_experts` is missing"),
        ("Qwen2Moe", {"moe_intermediate_size": "absent"}, "`moe_intermediate_size` is missing"),
        ("Qwen2Moe", {"mlp_only_layers": "all"}, "`mlp_only_layers` must be a list of layer indices"),
        ("Qwen2Moe", {"decoder_sparse_step": 0}, "`decoder_sparse_step` must be a positive integer"),
        ("Qwen3", {**SWITCHED, "layer_types": EVEN_FULL[:3]}, "`layer_types` must be a list of 4"),
        (
            "Qwen3",
            {**SWITCHED, "layer_types": ["linear_attention"] * 4},
            "each 'full_attention' or 'sliding_attention'",
        ),
        ("Qwen3", {"layer_types": ["sliding_attention"] * 2}, "all 'full_attention' where the sliding window is off"),
        ("Mistral", {"sliding_window": 0}, "`sliding_window` must be a positive integer"),
        ("Qwen2", {**SWITCHED, "max_window_layers": -1}, "`max_window_layers` must be"),
    ],
)
def test_a_wrong_key_of_a_family_is_named(tmp_path, family, overrides, message):
    with pytest.raises(ModelLoadError, match=message):
        read_spec(write_config(tmp_path, architecture=f"{family}ForCausalLM", **overrides))


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
    write_json(tmp_path / "config.json", {"architectures": ["Qwen4ForCausalLM"]})
    with pytest.raises(ModelLoadError, match="'Qwen4ForCausalLM' is not supported") as raised:
        read_spec(tmp_path)
    assert "did you mean" not in str(raised.value)
