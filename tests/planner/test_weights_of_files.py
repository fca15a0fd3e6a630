"""A plan counts what the engine makes of every kind of GGUF tensor, and of one rank's part, to the byte."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.kept_kinds import KEPT_BITS
from sglk.cli import main
from sglk.config.compose import compose
from sglk.config.fleet import alone
from sglk.config.plan_schema import PlanConfig, RoomConfig
from sglk.config.schema import ModelConfig, RuntimeConfig
from sglk.engine.loading import load_runner
from sglk.errors import ModelLoadError
from sglk.models.loader import load_model
from sglk.parallel.ranks import RankGroup
from sglk.planner.kinds import StoredKinds
from sglk.planner.plan import plan_deployment
from sglk.testing import tiny_gguf
from sglk.testing.tiny import write_tiny_model
from sglk.testing.tiny_gguf import write_tiny_gguf

UNREADABLE = {"Q8_1", "Q8_K", "Q1_0", "I8", "I16", "I32", "I64", "F64"}
"""Kinds of sums and counts, and those that the library does not know how to read."""
EXPERTS = {"moe_intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}
READABLE = [kind.name for kind in GGMLQuantizationType if kind.name not in UNREADABLE]

needs_kernels = pytest.mark.skipif(isinstance(kernels(), str), reason="there is no C compiler")


def of_any_kind(weight: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Return blocks of `kind`; made up where the library has no quantiser: bytes below 60 are no fp16 infinity."""
    try:
        return quantize(weight, kind)
    except NotImplementedError:
        block, size = GGML_QUANT_SIZES[kind]
        shape = (*weight.shape[:-1], weight.shape[-1] // block * size)
        return np.random.default_rng(0).integers(0, 60, size=shape, dtype=np.uint8)


@pytest.fixture(autouse=True)
def _all_kinds_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_gguf, "quantize", of_any_kind)


def write(folder: Path, kind: str, **numbers: Any) -> Path:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, **numbers}
    return write_tiny_gguf(folder / f"{kind}.gguf", quantization=kind, **sizes)


def deployment(file: Path, *words: str) -> PlanConfig:
    usual = ("chip=cpu", f"model={file}", "profiles=none", "runtime.device_memory_gib=0.1")
    return compose("plan", (*usual, *words)).config


def planned(config: PlanConfig) -> int:
    (replica,) = plan_deployment(alone(config), RoomConfig()).replicas
    return replica.found.weights.total


def allocated(config: PlanConfig) -> int:
    runner, _ = load_runner(config)
    try:
        return runner.weights_bytes
    finally:
        runner.close()


@needs_kernels
@pytest.mark.parametrize("kind", READABLE)
def test_a_file_of_every_kind_takes_what_is_planned(kind: str, tmp_path: Path) -> None:
    config = deployment(write(tmp_path, kind))
    assert planned(config) == allocated(config)


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q4_0", "TQ2_0", "MXFP4"])
def test_experts_of_a_file_take_what_is_planned(kind: str, tmp_path: Path) -> None:
    config = deployment(write(tmp_path, kind, architecture="Qwen3MoeForCausalLM", **EXPERTS))
    assert planned(config) == allocated(config)


def test_without_kernels_all_of_a_file_is_in_the_compute_dtype(tmp_path: Path) -> None:
    for kind in ("Q4_K", "TQ1_0"):
        config = deployment(write(tmp_path, kind))
        config = replace(config, backend=replace(config.backend, options={"kernels": "none"}))
        assert planned(config) == allocated(config)


@pytest.mark.parametrize("kind", ["Q8_1", "I32"])
def test_a_file_that_the_engine_cannot_read_is_not_planned(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, kind)
    with pytest.raises(ModelLoadError) as refusal:
        load_runner(deployment(file))
    assert f"has type {kind}, which cannot be dequantised; convert the model to F16" in str(refusal.value)
    assert main(["plan", "chip=h100", f"model={file}"]) == 2
    assert capsys.readouterr().err == f"sglk: error: {refusal.value}\n"


def test_what_is_kept_takes_no_fewer_bits_than_the_file() -> None:
    table = StoredKinds({name: name for name in READABLE})
    for name in READABLE:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        kept = table.matrix((name,), 64, 256)
        assert 64 * 256 // block * size <= kept <= 64 * 256 * 4, name
        assert (kept < 64 * 256 * 2) == (name in KEPT_BITS), name


@needs_kernels
@pytest.mark.parametrize("exact", [None, False])
@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("F32", "LlamaForCausalLM"),
        ("F16", "LlamaForCausalLM"),
        ("Q4_1", "LlamaForCausalLM"),
        ("Q8_0", "Qwen3MoeForCausalLM"),
        ("Q4_1", "Qwen3MoeForCausalLM"),
    ],
)
def test_a_rank_of_a_file_holds_what_is_planned(
    kind: str, architecture: str, exact: bool | None, tmp_path: Path
) -> None:
    file = write(tmp_path, kind, architecture=architecture, hidden_size=128, intermediate_size=128)
    same_on_two_ranks(file, None, exact)


@needs_kernels
@pytest.mark.parametrize("exact", [None, False])
@pytest.mark.parametrize("quantization", [None, "w8a8", "w4a16"])
@pytest.mark.parametrize(
    ("architecture", "numbers"),
    [
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
        ("Qwen3MoeForCausalLM", {}),
        ("Qwen2MoeForCausalLM", {"shared_expert_intermediate_size": 64}),
    ],
)
def test_a_rank_of_a_folder_holds_what_is_planned(
    architecture: str, numbers: dict[str, Any], quantization: str | None, exact: bool | None, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture, num_attention_heads=4, **numbers)
    same_on_two_ranks(folder, quantization, exact)


def same_on_two_ranks(path: Path, quantization: str | None, exact: bool | None) -> None:
    settings = {"quantization": quantization, "enable_deterministic_inference": exact}
    words = [f"runtime.{key}={'null' if value is None else str(value).lower()}" for key, value in settings.items()]
    total = planned(deployment(path, "runtime.tp_size=2", *words))
    # What a rank holds needs no meeting.
    ranks = [RankGroup(rank, 2, deterministic=exact) for rank in range(2)]
    model, runtime = ModelConfig(name="tiny", path=str(path)), RuntimeConfig(quantization=quantization)
    parts = [load_model(model, runtime, CpuBackend(num_threads=1), None, each).model for each in ranks]
    assert [part.weights_bytes for part in parts] == [total, total]


@pytest.mark.parametrize("quantization", ["w8a8", "w4a16", "fp8"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_quantised_experts_take_what_is_planned(quantization: str, dtype: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, architecture="Qwen2MoeForCausalLM", shared_expert_intermediate_size=48)
    config = deployment(folder, f"runtime.quantization={quantization}", f"runtime.dtype={dtype}")
    assert planned(config) == allocated(config)
