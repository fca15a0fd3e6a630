"""Models with latent attention, planned for SGLang and vLLM: DeepSeek-V2, -V3 and what is built like them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sglk.cli import main
from sglk.config.catalogue import models
from sglk.config.compose import compose
from sglk.config.fleet import alone
from sglk.config.model_size import num_parameters
from sglk.config.plan_schema import RoomConfig
from sglk.config.schema import ModelConfig
from sglk.errors import ConfigError, ModelLoadError
from sglk.models.fields import Fields
from sglk.models.hf_config import spec_from_config
from sglk.models.quantization_config import parse_quantization
from sglk.models.spec import ModelSpec
from sglk.planner.kv import kv_bytes_per_token
from sglk.planner.latent import absorbed, matrices
from sglk.planner.model import PlannedModel
from sglk.planner.plan import ReplicaPlan, plan_deployment
from sglk.planner.weights import Weights
from sglk.testing.tiny import tiny_config

V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 102400,
}
V3 = V2_LITE | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "vocab_size": 129280,
}
KIMI_K2 = V3 | {
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

SMALL: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "kv_lora_rank": 24,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 2,
    "topk_group": 1,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return spec_from_config(Fields(config, "config.json"), Fields({}, "generation_config.json"))


def launched(config: dict[str, Any]) -> PlannedModel:
    return PlannedModel("deepseek", spec_of(config), launched=True)


def parameters(config: dict[str, Any]) -> int:
    """Return the weights of the whole model: what one device has, without what it has twice."""
    weights = launched(config).weights("bf16", None, 1)
    assert weights.total % 2 == 0
    return (weights.total - weights.absorbed) // 2


def write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def planned(*words: str) -> ReplicaPlan:
    config = compose("plan", ["profiles=none", *words]).config
    (replica,) = plan_deployment(alone(config), RoomConfig()).replicas
    return replica


@pytest.mark.parametrize(
    ("config", "billions", "rounding"),
    # DeepSeek-AI 2024, arXiv:2405.04434, appendix B, and arXiv:2412.19437, section 4.2; Kimi Team 2025,
    # arXiv:2507.20534, section 2.3. Layers that predict several tokens are not served, and not counted.
    [(V2_LITE, 15.7, 0.001), (V3, 671, 0.001), (KIMI_K2, 1040, 0.015)],
)
def test_all_weights_together_are_the_published_number(
    config: dict[str, Any], billions: float, rounding: float
) -> None:
    assert parameters(config) / 1e9 == pytest.approx(billions, rel=rounding)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"q_lora_rank": None, "n_shared_experts": 1, "first_k_dense_replace": 2},
        {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "n_group": None, "topk_group": None},
        {"first_k_dense_replace": 3},
    ],
)
def test_each_weight_that_transformers_has_is_counted(changes: dict[str, Any]) -> None:
    config = {"model_type": "deepseek_v3"} | SMALL | changes
    kind = config.pop("model_type")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))  # type: ignore[no-untyped-call]
    assert parameters(config) == sum(weight.numel() for weight in model.parameters())


def test_the_numbers_of_a_configuration_are_counted_like_those_of_its_files() -> None:
    (lite,) = [model for model in models().entries if model.name == "deepseek_v2_lite"]
    assert num_parameters(lite) == parameters(V2_LITE)
    names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    names |= {"first_k_dense_replace": "first_dense_layers"}
    known = ModelConfig.__dataclass_fields__.keys()
    numbers = {names.get(key, key): value for key, value in V3.items() if names.get(key, key) in known}
    given = ModelConfig(name="v3", architecture="DeepseekV3ForCausalLM", **numbers)
    assert num_parameters(given) == parameters(V3)


def test_the_pool_has_one_vector_of_a_token_and_layer_on_every_rank() -> None:
    spec = spec_of(V3)
    for ranks in (1, 8, 16):
        assert kv_bytes_per_token(spec, "bf16", ranks) == 61 * (512 + 64) * 2
    assert kv_bytes_per_token(spec, "fp8_e4m3", 8) == 61 * (512 + 64)


def test_heads_widths_and_vocabulary_are_divided_and_the_rest_is_on_every_rank() -> None:
    model, spec = launched(V3), spec_of(V3)
    assert spec.latent is not None
    whole = model.weights("bf16", None, 1)
    for ranks in (2, 8):
        part = model.weights("bf16", None, ranks)
        again = 2 * (ranks - 1)
        vectors = (1536 + 512 + 64) * 7168
        assert ranks * part.attention == whole.attention + again * 61 * vectors
        assert ranks * part.feed_forward == whole.feed_forward + again * 58 * 256 * 7168
        assert part.norms == whole.norms
        for name in ("embedding", "head", "absorbed"):
            assert ranks * getattr(part, name) == getattr(whole, name)
    assert absorbed(spec, spec.latent) in [outputs * inputs for _, outputs, inputs in matrices(spec, spec.latent)]


def test_a_vocabulary_is_filled_up_and_every_moe_layer_freq_th_layer_has_experts() -> None:
    model = launched(SMALL | {"vocab_size": 130, "moe_layer_freq": 2, "num_hidden_layers": 5})
    assert model.weights("fp32", None, 2).embedding == 96 * 64 * 4
    assert model.spec.moe is not None
    assert model.spec.moe.dense_layers == {0, 1, 3}
    dense = spec_of({key: value for key, value in SMALL.items() if key != "n_routed_experts"})
    assert dense.moe is None


def test_blocks_of_a_checkpoint_share_their_scales_and_are_not_cut(tmp_path: Path) -> None:
    folder = write(tmp_path / "v3", V3 | {"quantization_config": FP8})
    for engine in ("sglang", "vllm"):
        plan = planned("chip=h200", f"engine={engine}", f"model={folder}", "runtime.tp_size=8")
        assert (plan.found.quantization, plan.verdict) == ("fp8", "fits")
        assert plan.subject.tp_sizes() == [1, 2, 4, 8, 16]
        whole, plain = (plan.subject.model.weights("bf16", each, 1) for each in (plan.subject.scheme, None))
        routers = 58 * 256 * 7168
        numbers = (plain.attention + plain.feed_forward) // 2 - routers
        stored = whole.attention + whole.feed_forward - 2 * routers
        assert stored == pytest.approx(numbers * (1 + 4 / 128**2), rel=1e-5)
    unblocked = planned("chip=h200", "engine=sglang", f"model={write(tmp_path / 'plain', V3)}", "runtime.tp_size=16")
    assert unblocked.subject.tp_sizes() == [1, 2, 4, 8, 16, 32, 64]
    with pytest.raises(ConfigError, match=r"vocabulary of 129280 of 'v3' evenly and in whole blocks of 128; allow"):
        planned("chip=h200", "engine=sglang", f"model={folder}", "runtime.tp_size=32")


def test_blocks_of_the_outputs_for_heads_are_not_cut_either(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 1024,
        "intermediate_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 256,
    }
    folder = write(tmp_path / "tiny", tiny_config(**sizes) | {"quantization_config": FP8})
    for engine, allowed in (("sglang", [1, 2]), ("vllm", [1, 2, 4, 8])):
        assert planned("chip=h200", f"engine={engine}", f"model={folder}").subject.tp_sizes() == allowed
    narrow = V3 | {"qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 64, "quantization_config": FP8}
    latent = write(tmp_path / "narrow", narrow | {"num_attention_heads": 8, "num_key_value_heads": 8})
    for engine in ("sglang", "vllm"):
        # 112 outputs of a head of `kv_b_proj`: only all eight together are whole blocks.
        assert planned("chip=h200", f"engine={engine}", f"model={latent}").subject.tp_sizes() == [1]


def test_what_decoding_takes_needs_memory_where_it_is_a_copy(tmp_path: Path) -> None:
    plain, blocks = write(tmp_path / "v3", V3), write(tmp_path / "fp8", V3 | {"quantization_config": FP8})
    copied = 61 * 128 * (128 + 128) * 512 * 2 // 8

    def extra(engine: str, folder: Path) -> int:
        plan = planned("chip=h200", f"engine={engine}", f"model={folder}", "runtime.tp_size=8", "runtime.dtype=bf16")
        return plan.found.weights.absorbed

    assert [extra("sglang", plain), extra("sglang", blocks), extra("vllm", blocks)] == [copied] * 3
    assert extra("vllm", plain) == 0


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_layers_that_a_checkpoint_leaves_out_are_counted_in_the_compute_dtype(tmp_path: Path, engine: str) -> None:
    """As Kimi-K2-Thinking does, whose experts alone have 4 bits."""
    group = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}
    others = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]

    def weights(name: str, ignore: list[str] | None) -> Weights:
        quantised = {} if ignore is None else {"quantization_config": packed | {"ignore": ignore}}
        folder = write(tmp_path / name, KIMI_K2 | quantised)
        words = ("chip=h200", f"engine={engine}", f"model={folder}", "runtime.tp_size=8", "runtime.dtype=bf16")
        return planned(*words).found.weights

    whole, all_in_4, experts_in_4 = weights("plain", None), weights("all", ["lm_head"]), weights("experts", others)
    assert all_in_4.attention < experts_in_4.attention == whole.attention
    # 60 layers of shared experts and one dense layer, in 16 bits rather than in 4.5.
    left_out = 3 * 7168 * (60 * 2048 + 18432) // 8
    assert experts_in_4.feed_forward - all_in_4.feed_forward == left_out * (16 - 4.5) / 8
    assert experts_in_4.absorbed == whole.absorbed == (0 if engine == "vllm" else all_in_4.absorbed)
    one = weights("one", ["model.layers.0.self_attn.kv_b_proj"])
    assert one.attention - all_in_4.attention == 64 * 256 * 512 // 8 * (16 - 4.5) / 8


def test_a_checkpoint_that_leaves_out_what_nobody_can_name_is_told(tmp_path: Path) -> None:
    quantised = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}
    for ignore in ("lm_head", [1], ["re:("]):
        with pytest.raises(ModelLoadError, match="`ignore` must be a list of names"):
            parse_quantization(Fields(quantised | {"ignore": ignore}, "config.json"))


def test_a_chosen_number_of_devices_has_room_for_weights_and_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "chip=a100_40g", "model=deepseek_v2_lite", "engine=vllm", "--json"]) == 0
    (replica,) = json.loads(capsys.readouterr().out)["replicas"]
    assert replica["tp_size"] == 2
    assert replica["kv"]["bytes_per_token"] == 27 * (512 + 64) * 2
    assert {"runtime.context_length"} in [way["changes"].keys() for way in replica["ways"]]
    assert "has latent attention, whose steps have no price" in replica["no_speed"]
    assert main(["plan", "chip=a100_40g", "model=deepseek_v2_lite", "engine=sglang"]) == 0
    assert "absorbed" in capsys.readouterr().out


def test_int8_is_no_dtype_of_its_pool(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "chip=cpu", "model=deepseek_v2_lite", "engine=sglang"]
    assert main([*words, "runtime.kv_cache_dtype=int8"]) == 2
    assert "runtime.kv_cache_dtype=int8 is not known of latent attention" in capsys.readouterr().err
    main([*words, "--json"])
    (replica,) = json.loads(capsys.readouterr().out)["replicas"]
    assert "fp8_e4m3" in (dtypes := [option["dtype"] for option in replica["kv_options"]])
    assert "int8" not in dtypes


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (["plan"], "architecture 'DeepseekV2ForCausalLM' is not supported"),
        (["plan"], "with engine=sglang or engine=vllm DeepseekV2ForCausalLM, DeepseekV3ForCausalLM"),
        (["simulate"], "architecture 'DeepseekV2ForCausalLM' is not supported"),
        (["simulate", "engine=sglang"], "engine=sglang has a scheduler of its own, which cannot be simulated"),
        (["tune", "study.simulate=true", "engine=vllm"], "engine=vllm has a scheduler of its own, which cannot be"),
        (["serve", "backend=sim", "runtime.load_format=dummy"], "architecture 'DeepseekV2ForCausalLM' is not"),
    ],
)
def test_our_own_engine_refuses_it_in_one_line(
    command: list[str], part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "chip=h100", "model=deepseek_v2_lite"]) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("sglk: error: ")
    assert part in err


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"kv_lora_rank": None}, "`kv_lora_rank` is missing"),
        ({"qk_rope_head_dim": 7}, "`qk_rope_head_dim` must be even"),
        ({"v_head_dim": 0}, "`v_head_dim` must be a positive integer"),
        ({"attention_bias": True}, "`attention_bias` must be false"),
        ({"num_experts_per_tok": 9}, "`num_experts_per_tok` must be at most `n_routed_experts` (8)"),
        ({"moe_layer_freq": [1, 0]}, "`moe_layer_freq` must be a positive integer"),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "architecture 'DeepseekV32ForCausalLM' is not supported"),
        ({"architectures": ["DeepSeekV3ForCausalLM"]}, "did you mean 'DeepseekV3ForCausalLM'?"),
    ],
)
def test_a_damaged_description_is_told_with_its_key(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ModelLoadError) as raised:
        spec_of(SMALL | changes)
    assert part in str(raised.value)


def test_every_model_of_another_engine_divides_its_vocabulary(tmp_path: Path) -> None:
    ours = planned("chip=h100", "model=qwen72b", "runtime.tp_size=4").found.weights
    theirs = planned("chip=h100", "model=qwen72b", "runtime.tp_size=4", "engine=sglang").found.weights
    assert 4 * theirs.embedding == ours.embedding
    assert replace(theirs, embedding=ours.embedding, head=ours.head) == ours
    widths: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
    }
    thirds = write(tmp_path / "thirds", tiny_config(**widths))
    assert planned("chip=h100", f"model={thirds}", "runtime.tp_size=3").found.kv_tokens > 0
    with pytest.raises(ConfigError, match="vocabulary of 320 of 'thirds' evenly; allowed: 1, 2"):
        planned("chip=h100", f"model={thirds}", "runtime.tp_size=3", "engine=vllm")
