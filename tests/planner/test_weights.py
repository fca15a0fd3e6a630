"""A plan counts what the engine allocates: the same numbers, from shapes alone and from real memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from sglk.backends.cpu_kernels.library import kernels
from sglk.config.compose import compose
from sglk.config.fleet import alone
from sglk.config.plan_schema import PlanConfig, RoomConfig
from sglk.engine.loading import load_runner
from sglk.models.safetensors_weights import SINGLE
from sglk.planner.options import weight_options
from sglk.planner.plan import ReplicaPlan, plan_deployment
from sglk.testing.tiny import write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf
from tests.quantization import checkpoints
from tests.quantization.checkpoints import Tensors, grid, write_pair

SIM = ("backend=sim", "backend.options.speed=0", "profiles=none")


def planned(config: PlanConfig) -> ReplicaPlan:
    (replica,) = plan_deployment(alone(config), RoomConfig()).replicas
    return replica


def allocated(config: PlanConfig) -> tuple[int, int]:
    """Return bytes of weights and KV tokens in whole pages, as the engine has them on its first device."""
    runner, _ = load_runner(config)
    page_size = config.runtime.page_size
    try:
        return runner.weights_bytes, runner.kv_capacity_tokens(config.runtime) // page_size * page_size
    finally:
        runner.close()


def same_as_the_engine(config: PlanConfig) -> ReplicaPlan:
    plan = planned(config)
    assert (plan.found.weights.total, plan.found.kv_tokens) == allocated(config)
    return plan


@pytest.mark.parametrize(
    ("chip", "model", "runtime"),
    [
        ("a100_40g", "qwen32b", "tp_size: 2"),
        ("kunlun", "qwen32b", "tp_size: 2, quantization: w8a8"),
        ("kunlun", "llama3_8b", "mem_fraction_static: 0.6, page_size: 128"),
        ("l20", "qwen72b", "tp_size: 4, quantization: w4a16, kv_cache_dtype: fp8_e4m3"),
        ("a100_80g", "mixtral8x7b", "tp_size: 2, quantization: w8a8_int8"),
        # Four key-value heads and eight ranks: each head is on two of them.
        ("h100", "qwen3_30b_a3b", "tp_size: 8, quantization: fp8"),
        ("rtx4090", "qwen0_5b", "tp_size: 2, device_memory_gib: 3"),
        ("cpu", "smollm2", "tp_size: 3, kv_cache_dtype: int8, quantization: w8a16"),
        ("ascend_910b", "qwen3_8b", "max_total_tokens: 4096, dtype: fp16"),
    ],
)
def test_weights_and_kv_tokens_are_those_of_the_engine_on_a_simulated_chip(chip: str, model: str, runtime: str) -> None:
    plan = same_as_the_engine(
        compose("plan", [*SIM, f"chip={chip}", f"model={model}", f"runtime={{{runtime}}}"]).config
    )
    assert plan.found.kv_tokens > 0


@pytest.mark.parametrize(
    ("architecture", "numbers"),
    [
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("Qwen2ForCausalLM", {"num_key_value_heads": 1}),
        ("Qwen2MoeForCausalLM", {"mlp_only_layers": [0], "shared_expert_intermediate_size": 64}),
        ("Qwen3ForCausalLM", {}),
        ("Qwen3MoeForCausalLM", {"num_hidden_layers": 3, "decoder_sparse_step": 2}),
        ("MixtralForCausalLM", {}),
    ],
)
def test_every_family_is_counted_from_its_files(architecture: str, numbers: dict[str, Any], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny", architecture=architecture, **numbers)
    config = compose("plan", [*SIM, "chip=h100", f"model={folder}", "runtime.device_memory_gib=0.5"]).config
    devices = [replace(config.groups[0], devices=["sim:0", "sim:1"])]
    for quantization in (None, "w4a16", "fp8"):
        for size in (1, 2):
            runtime = replace(config.runtime, quantization=quantization, tp_size=size)
            same_as_the_engine(replace(config, runtime=runtime, groups=devices))


def test_a_quantised_checkpoint_is_counted_in_its_own_groups(tmp_path: Path) -> None:
    def awq(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        made = grid(weight, 32, symmetric=False)
        return checkpoints.awq(made), made.weight_OE

    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    folder, twin = write_pair(tmp_path, settings, awq)
    words = [*SIM, "chip=a100_40g", "runtime={mem_fraction_static: 0.01, device_memory_gib: 1}"]
    plan = same_as_the_engine(compose("plan", [*words, f"model={folder}"]).config)
    assert (plan.found.quantization, {each.quantization for each in weight_options(plan.subject)}) == (
        "w4a16",
        {"w4a16"},
    )
    assert plan.found.weights.total < planned(compose("plan", [*words, f"model={twin}"]).config).found.weights.total


def in_little_memory(folder: Path, settings: str) -> PlanConfig:
    """Return a deployment in so little memory that the fraction bounds the pool, not the window."""
    return compose("plan", ["chip=cpu", f"model={folder}", "profiles=none", f"runtime={{{settings}}}"]).config


@pytest.mark.parametrize("settings", ["kv_cache_dtype: int8", "mem_fraction_static: 0.9, dtype: bf16"])
def test_on_the_processor_the_pool_is_within_two_in_a_hundred(settings: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny", num_hidden_layers=4, max_position_embeddings=4096)
    config = in_little_memory(folder, f"device_memory_gib: 0.02, {settings}")
    plan, (weights, tokens) = planned(config), allocated(config)
    assert plan.found.weights.total == pytest.approx(weights, rel=0.1)
    assert plan.found.kv_tokens == pytest.approx(tokens, rel=0.02)
    assert tokens < 16 * 4096


@pytest.mark.parametrize("kind", ["BF16", "Q5_1", "Q8_0", "Q4_0", "Q4_1"])
def test_what_kernels_keep_of_a_file_is_counted_to_the_byte(kind: str, tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quantization=kind, hidden_size=64, tie_word_embeddings=False)
    config = in_little_memory(file, "device_memory_gib: 0.01")
    if kind == "Q4_0" or isinstance(kernels(), str):
        # Whoever compiles nothing has everything in fp32.
        config = replace(config, backend=replace(config.backend, options={"kernels": "none"}))
    same_as_the_engine(config)


def test_what_kernels_keep_of_experts_and_of_folders_is_counted_to_the_byte(tmp_path: Path) -> None:
    if isinstance(kernels(), str):
        pytest.skip("there is no C compiler")
    moe = write_tiny_gguf(tmp_path / "moe.gguf", quantization="F16", architecture="Qwen3MoeForCausalLM")
    same_as_the_engine(in_little_memory(moe, "device_memory_gib: 0.01"))
    folder = write_tiny_model(tmp_path / "tiny")
    same_as_the_engine(in_little_memory(folder, "device_memory_gib: 0.01"))
    save_file({name: weight.half() for name, weight in load_file(folder / SINGLE).items()}, folder / SINGLE)
    halved = same_as_the_engine(in_little_memory(folder, "device_memory_gib: 0.01"))
    assert (
        halved.found.weights.embedding
        == 2 * halved.subject.model.spec.vocab_size * halved.subject.model.spec.hidden_size
    )


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_that_the_processor_rounds_is_counted_to_the_byte(tied: bool, tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", hidden_size=64, tie_word_embeddings=tied)
    plan = same_as_the_engine(in_little_memory(file, "device_memory_gib: 0.01, quantization: w8a8"))
    spec = plan.subject.model.spec
    assert plan.found.weights.head == spec.vocab_size * (64 + 2 * 4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["dtype: fp32", "quantization: w8a8", "tp_size: 3, kv_cache_dtype: bf16"])
def test_smollm2_on_the_processor(settings: str) -> None:
    words = ["chip=cpu", "profiles=none", f"runtime={{device_memory_gib: 2, {settings}}}"]
    for kernels_used in ("none", "native"):
        config = compose("plan", [*words, f"backend.options.kernels={kernels_used}"]).config
        plan, (weights, tokens) = planned(config), allocated(config)
        assert plan.found.weights.total == pytest.approx(weights, rel=0.02)
        assert plan.found.kv_tokens == pytest.approx(tokens, rel=0.02)
