"""A model over a KV pool of few bits."""

from pathlib import Path

import pytest

from sglk.backends.cpu import CpuBackend
from sglk.config.schema import RuntimeConfig
from sglk.engine.runner import ModelRunner
from sglk.testing.tiny import tiny_config, write_tiny_model
from tests.models.greedy import tiny_runner
from tests.quantization.answers import load, logits

ERRORS = {"fp16": 1e-3, "bf16": 1e-2, "int8": 2e-2, "fp8_e4m3": 8e-2, "fp8_e5m2": 0.16}
"""Largest relative error of the logits of a tiny random model."""


@pytest.mark.parametrize("dtype", ERRORS)
def test_logits_stay_close(tmp_path: Path, dtype: str) -> None:
    model = load(write_tiny_model(tmp_path))
    expected = logits(model)
    error = float((logits(model, kv_cache_dtype=dtype) - expected).norm() / expected.norm())
    assert 1e-6 < error < ERRORS[dtype]


def test_fewer_bytes_make_room_for_more_tokens() -> None:
    runtime = RuntimeConfig(device_memory_gib=4 / 1024, mem_fraction_static=0.9, max_running_requests=1000)
    sizes = {
        dtype: tiny_runner(tiny_config(), kv_cache_dtype=dtype).kv_capacity_tokens(runtime)
        for dtype in ("fp32", "fp16", "fp8_e4m3", "int8")
    }
    assert sizes["fp16"] == pytest.approx(2 * sizes["fp32"], abs=1)
    assert sizes["fp8_e4m3"] == pytest.approx(4 * sizes["fp32"], abs=3)
    # 16 numbers of a head and their scale.
    assert sizes["int8"] == pytest.approx(sizes["fp32"] * 64 / 20, abs=3)


def test_smaller_weights_make_room_for_more_tokens(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, hidden_size=256)
    runtime = RuntimeConfig(device_memory_gib=10 / 1024, mem_fraction_static=0.9, max_running_requests=1000)
    plain, rounded = (
        ModelRunner(load(folder, quantization=scheme), CpuBackend(num_threads=1), runtime) for scheme in (None, "w8a8")
    )
    saved = plain.weights_bytes - rounded.weights_bytes
    tokens = rounded.kv_capacity_tokens(runtime) - plain.kv_capacity_tokens(runtime)
    bytes_per_token = 2 * 2 * 2 * 64 * 4
    assert tokens == pytest.approx(saved / bytes_per_token, abs=1)
    assert saved > 0.4 * plain.weights_bytes
