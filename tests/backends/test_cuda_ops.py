"""The ops of the cuda backend against the reference, on the processor; kernels of a GPU are not verified by this."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.bias import CausalBias

from sglk.backends import (
    cuda_moe_ops,
    cuda_ops,
    cuda_quantised,
    moe_ops,
    quantised_linear,
    quantised_moe,
    reference,
    sampling_ops,
)
from sglk.backends.ops import known_ops
from sglk.backends.quantise import quantise_fp8, quantise_int4, quantise_int8
from sglk.backends.quantised import QuantisedMatrix
from sglk.backends.rows import PagedRows
from sglk.config.compose import compose
from sglk.engine.loading import load_runner
from sglk.testing.tiny import write_tiny_model
from tests.backends.on_cpu import CudaOnCpu
from tests.backends.tensors import close, paged_rows, randn
from tests.models.greedy import together

DTYPES = [torch.float32, torch.bfloat16]


def test_the_backend_runs_every_op_itself() -> None:
    ops = CudaOnCpu(fallback="forbid").ops
    defined = vars(reference) | vars(moe_ops) | vars(sampling_ops) | vars(quantised_linear) | vars(quantised_moe)
    assert {ops.select(defined[name], **TRAITS).choice.provider for name in known_ops()} == {"cuda"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(dtype: torch.dtype) -> None:
    x, residual, weight = randn(7, 96, dtype=dtype), randn(7, 96, dtype=dtype, seed=1), randn(96, dtype=dtype)
    close(cuda_ops.rms_norm(x, weight, 1e-5), reference.rms_norm.reference(x, weight, 1e-5))
    expected = reference.add_rms_norm.reference(x.clone(), residual.clone(), weight, 1e-5)
    for got, want in zip(cuda_ops.add_rms_norm(x, residual, weight, 1e-5), expected, strict=True):
        close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("page_size", "window"), [(16, None), (16, 8), (1, 33)])
def test_prefill_attention(page_size: int, window: int | None, dtype: torch.dtype) -> None:
    query_lens, kv_lens = [1, 5, 40, 1, 17], [1, 37, 40, 30, 18]
    rows, slots = paged_rows(query_lens, kv_lens, page_size, window)
    q = randn(sum(query_lens), 9, 16, dtype=dtype)
    k, v = randn(slots, 3, 16, dtype=dtype, seed=1), randn(slots, 3, 16, dtype=dtype, seed=2)
    close(cuda_ops.attention_prefill(q, k, v, rows, 0.25), reference.attention_prefill.reference(q, k, v, rows, 0.25))


def test_causality_is_told_without_a_mask_where_there_is_no_window() -> None:
    rows, _ = paged_rows([40, 5], [40, 37], 16)
    assert cuda_ops.causality(rows, 0, 40) == {"is_causal": True}
    assert isinstance(cuda_ops.causality(rows, 1, 5)["attn_mask"], CausalBias)
    windowed, _ = paged_rows([40, 5], [40, 37], 16, 38)
    assert cuda_ops.causality(windowed, 0, 40)["attn_mask"] is windowed.causal_masks[0]
    assert isinstance(cuda_ops.causality(windowed, 1, 5)["attn_mask"], CausalBias)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="grouped products came with torch 2.10")
@pytest.mark.parametrize("tokens", [1, 23])
def test_experts_in_grouped_products(tokens: int) -> None:
    experts, top_k, hidden, width = 6, 2, 32, 16
    x = randn(tokens, hidden, dtype=torch.bfloat16)
    gate_up = randn(experts, 2 * width, hidden, dtype=torch.bfloat16, seed=1) / 4
    down = randn(experts, hidden, width, dtype=torch.bfloat16, seed=2) / 4
    weights, ids = moe_ops.route.reference(randn(tokens, experts, seed=3), top_k, True)
    got = cuda_moe_ops.run_experts(x, gate_up, down, weights, ids)
    close(got, moe_ops.run_experts.reference(x, gate_up, down, weights, ids))


SCHEMES: dict[str, tuple[Any, Any]] = {
    "w8a8": (lambda w: quantise_int8(w, w.shape[1]), cuda_quantised.linear_w8a8),
    "w8a16": (lambda w: quantise_int8(w, 16), cuda_quantised.linear_dequantised),
    "w4a16": (lambda w: quantise_int4(w, 16, False), cuda_quantised.linear_dequantised),
    "fp8": (lambda w: quantise_fp8(w, w.shape[1]), cuda_quantised.linear_dequantised),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantised_products(scheme: str, tokens: int, dtype: torch.dtype) -> None:
    quantise, linear = SCHEMES[scheme]
    weight: QuantisedMatrix = quantise(randn(48, 64) / 8)
    x, bias = randn(tokens, 64, dtype=dtype, seed=1), randn(48, dtype=dtype, seed=2)
    for each in (None, bias):
        close(linear(x, weight, each), vars(quantised_linear)[f"linear_{scheme}"].reference(x, weight, each))


def test_fp8_products_are_those_of_activations_rounded_to_e4m3() -> None:
    weight = quantise_fp8(randn(48, 64) / 8, 64)
    x, bias = randn(5, 64, dtype=torch.bfloat16, seed=1), randn(48, dtype=torch.bfloat16, seed=2)
    x[3] = 0
    rounded = quantise_fp8(x, 64)
    wanted = quantised_linear.linear_fp8.reference(
        (rounded.values.float() * rounded.scales_OG).to(torch.bfloat16), weight, bias
    )
    close(cuda_quantised.linear_fp8(x, weight, bias), wanted)


def test_a_token_that_is_not_finite_stays_so_and_alone() -> None:
    weight = quantise_fp8(randn(48, 64), 64)
    x = randn(3, 64, dtype=torch.bfloat16, seed=1)
    x[1, 5] = torch.nan
    finite = cuda_quantised.linear_fp8(x, weight, None).isfinite().all(-1)
    assert finite.tolist() == [True, False, True]


TRAITS: dict[str, Any] = {
    "dtype": "bf16",
    "experts": 6,
    "top_k": 2,
    "hidden": 64,
    "width": 32,
    "in_features": 64,
    "out_features": 48,
    "group_size": -1,
    "scheme": "w8a8",
}


@pytest.mark.parametrize(
    ("op", "changes", "function"),
    [
        (moe_ops.run_experts, {}, "run_experts of sglk.backends.cuda_moe_ops"),
        (moe_ops.run_experts, {"dtype": "fp16"}, "run_experts of sglk.backends.cpu_moe_ops"),
        (moe_ops.run_experts, {"width": 36}, "run_experts of sglk.backends.cpu_moe_ops"),
        (quantised_linear.linear_w8a8, {}, "linear_w8a8 of sglk.backends.cuda_quantised"),
        (quantised_linear.linear_w8a8, {"group_size": 16}, "linear_w8a8 of sglk.backends.quantised_linear"),
        (quantised_linear.linear_w8a8, {"out_features": 44}, "linear_w8a8 of sglk.backends.quantised_linear"),
        (quantised_linear.linear_fp8, {}, "linear_fp8 of sglk.backends.cuda_quantised"),
        (quantised_linear.linear_fp8, {"dtype": "fp16"}, "linear_dequantised of sglk.backends.cuda_quantised"),
        (quantised_linear.linear_fp8, {"in_features": 72}, "linear_dequantised of sglk.backends.cuda_quantised"),
    ],
)
def test_a_kernel_is_chosen_only_for_the_shapes_that_it_takes(op: Any, changes: dict[str, Any], function: str) -> None:
    bound = CudaOnCpu(fallback="forbid").ops.select(op, **TRAITS | changes)
    assert f"{bound.function.__name__} of {bound.function.__module__}" == function


def test_older_gpus_take_older_roads() -> None:
    class Turing(CudaOnCpu):
        capability = (7, 0)

    ops = Turing(fallback="forbid").ops
    chosen = [ops.select(op, **TRAITS).function for op in (moe_ops.run_experts, quantised_linear.linear_w8a8)]
    assert [function.__module__ for function in chosen] == [
        "sglk.backends.cpu_moe_ops",
        "sglk.backends.quantised_linear",
    ]


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen3MoeForCausalLM"])
def test_a_model_answers_as_it_does_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    monkeypatch.setattr("sglk.plugins.claims._registered", {"cuda_on_cpu": CudaOnCpu})
    folder = write_tiny_model(tmp_path, architecture=architecture, sliding_window=24)
    assert greedy(folder, "cuda_on_cpu") == greedy(folder, "cpu")


class FlashInferStandIn:
    """What is used of the package `flashinfer`, by the reference on the cpu; checks what it is handed."""

    def __init__(self, workspace: torch.Tensor, layout: str, use_tensor_cores: bool = False) -> None:
        assert (workspace.dtype, layout) == (torch.uint8, "NHD")
        self.tensor_cores = use_tensor_cores
        self.plans = 0

    def plan(self, *arguments: Any, **keywords: Any) -> None:
        lists, self.sizes = arguments[:-4], arguments[-4:]
        assert all(each.dtype is torch.int32 and each.device.type == "cpu" for each in lists)
        self.starts, self.indptr, self.indices, self.last = lists if len(lists) == 4 else (None, *lists)
        assert keywords.get("causal", True)
        assert keywords["q_data_type"] is keywords["kv_data_type"] is torch.bfloat16
        self.left, self.scale = keywords["window_left"], keywords["sm_scale"]
        self.plans += 1

    def run(self, q: torch.Tensor, pools: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        heads, kv_heads, width, page_size = self.sizes
        assert q.shape[1:] == (heads, width)
        assert pools[0].shape[1:] == (page_size, kv_heads, width)
        counts = self.indptr.diff().numpy().astype(np.int64)
        table = np.zeros((len(counts), counts.max()), np.int64)
        for row, (start, count) in enumerate(zip(self.indptr.tolist(), counts, strict=False)):
            table[row, :count] = self.indices[start : start + count]
        kv_lens = (counts - 1) * page_size + self.last.numpy()
        query_lens = np.ones_like(counts) if self.starts is None else self.starts.diff().numpy().astype(np.int64)
        window = None if self.left < 0 else self.left + 1
        rows = PagedRows(query_lens, kv_lens, table, page_size, q.device, window)
        k, v = (pool.reshape(-1, kv_heads, width) for pool in pools)
        return reference.attention_prefill.reference(q, k, v, rows, self.scale)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[FlashInferStandIn]]:
    """Install the stand-in for one test."""
    (tmp_path / "flashinfer.py").write_text(
        "from tests.backends.test_cuda_ops import FlashInferStandIn\n"
        "BatchPrefillWithPagedKVCacheWrapper = BatchDecodeWithPagedKVCacheWrapper = FlashInferStandIn\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    yield FlashInferStandIn
    # What the test imported is not what was there before it, if anything was.
    sys.modules.pop("flashinfer", None)


SHAPE: dict[str, Any] = {
    "head_dim": 64,
    "kv_heads": 2,
    "heads": 8,
    "kv_dtype": "bf16",
    "dtype": "bf16",
    "page_size": 16,
}


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize("window", [None, 20])
def test_flashinfer_is_handed_pages_lengths_and_window(window: int | None) -> None:
    ops = CudaOnCpu(attention="auto").ops
    traits = SHAPE | {"window": window or 0}
    query_lens, kv_lens = [1, 5, 40], [33, 37, 40]
    for op, lens in ((reference.attention_prefill, query_lens), (reference.attention_decode, [1] * 3)):
        bound = ops.select(op, **traits)
        assert bound.choice.provider == "flashinfer"
        rows, slots = paged_rows(lens, kv_lens, 16, window)
        q = randn(sum(lens), 8, 64, dtype=torch.bfloat16)
        k, v = (randn(slots, 2, 64, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
        for layer in range(2):
            got = bound(q + layer, k, v, rows, 0.125)
            close(got, op.reference(q + layer, k, v, rows, 0.125))
        (planned,) = (each for each in bound.function.__self__._planned.values() if each.rows() is rows)
        assert planned.wrapper.plans == 1


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 96}, "flashinfer: head_dim in {64, 128, 256}"),
        ({"dtype": "fp32", "kv_dtype": "fp32"}, "flashinfer: dtype in {fp16, bf16}"),
        ({"kv_dtype": "int8"}, "flashinfer: kv_dtype == dtype"),
        ({"recorded": True}, "flashinfer: not recorded"),
    ],
)
def test_what_flashinfer_does_not_take_goes_to_torch(changes: dict[str, Any], reason: str) -> None:
    choice = CudaOnCpu(attention="auto").ops.select(reference.attention_decode, **SHAPE | changes).choice
    assert (choice.provider, choice.reason) == ("cuda", reason)


def greedy(folder: Path, backend: str) -> list[list[int]]:
    words = [f"model={folder}", f"backend.name={backend}", "runtime.num_threads=1", "profiles=none"]
    runner, _ = load_runner(compose("serve", [*words, "runtime.dtype=fp32"]).config)
    return together(runner, [range(3, 60), range(100, 141)], 12, chunk=23, page_size=16, num_pages=16)
