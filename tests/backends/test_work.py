"""Figures worked out by hand; letters as in `sglk.backends.work`."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from sglk.backends import moe_ops, quantised_linear, quantised_moe, reference, sampling_ops
from sglk.backends.kv_values import KVScales
from sglk.backends.ops import Op
from sglk.backends.quantise import quantise_int4, quantise_int8
from sglk.backends.rows import PagedRows
from sglk.backends.work import (
    FORMULAS,
    Work,
    allreduce_bytes,
    visible_pairs,
    visible_tokens,
    visited_experts,
    work_of,
)
from sglk.backends.work_arguments import RowLens, Shaped, StoredMatrix

MODULES = (moe_ops, quantised_linear, quantised_moe, reference, sampling_ops)
"""Where the ops of the seam are defined."""

META = torch.device("meta")


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def rows(query_lens: list[int], kv_lens: list[int], window: int | None = None) -> PagedRows:
    pages = np.zeros((len(kv_lens), 1), np.int64)
    return PagedRows(np.array(query_lens), np.array(kv_lens), pages, 1024, META, window)


def test_every_op_has_a_formula_and_no_formula_is_of_none() -> None:
    defined = {each.name for module in MODULES for each in vars(module).values() if isinstance(each, Op)}
    assert FORMULAS.keys() == defined


def test_linear() -> None:
    # 3 tokens, 8 inputs, 5 outputs: 2*3*8*5 + 3*5; (24 + 40 + 5 + 15) values of 2 bytes.
    assert work_of("linear", empty(3, 8), empty(5, 8), empty(5)) == Work(255, 168, "bf16")
    assert work_of("linear", empty(3, 8), empty(5, 8), None) == Work(240, 158, "bf16")


def test_quantised_weights_count_as_they_are_stored() -> None:
    weight = torch.randn(16, 64)
    int8, int4 = quantise_int8(weight, 64), quantise_int4(weight, 32, symmetric=False)
    x = torch.zeros(2, 64)
    # x and y: 2*64*4 + 2*16*4 = 640 bytes; int8: 16*64 + 16 scales of 4; int4: 16*32 + 32 scales and zeros of 2 each.
    assert work_of("linear_w8a8", x, int8, None) == Work(4096, 640 + 1024 + 64, "int8")
    assert work_of("linear_w8a16", x, int8, None) == Work(4096, 640 + 1024 + 64, "fp32")
    assert work_of("linear_w4a16", x, int4, None) == Work(4096, 640 + 512 + 128, "fp32")
    assert work_of("linear_fp8", x, int8, None).dtype == "fp8"


def test_a_decode_step_reads_the_keys_and_values_of_all_its_rows() -> None:
    # 2 rows of 100 and 28 tokens, 4 heads on 2, width 8: 128 pairs * 4 * 4 * 8; q and out 2*2*32, KV 128*2*2*8 values.
    pool = empty(1024, 2, 8)
    work = work_of("attention_decode", empty(2, 4, 8), pool, pool, rows([1, 1], [100, 28]), 0.35)
    assert work == Work(16384, 2 * (128 + 4096), "bf16")


def test_an_int8_pool_is_read_with_its_scales() -> None:
    pool = empty(1024, 2, 8, dtype=torch.int8)
    scales = KVScales(empty(1024, 2, dtype=torch.float32), empty(1024, 2, dtype=torch.float32))
    work = work_of("attention_decode", empty(1, 4, 8), pool, pool, rows([1], [10]), 0.35, scales)
    # q and out 2*32*2 bytes; a token: 2 * 2 heads * (8 values + a scale of 4 bytes).
    assert work.bytes == 128 + 10 * 48
    store = work_of("store_kv", empty(3, 2, 8), empty(3, 2, 8), pool, pool, empty(3, dtype=torch.int64), scales)
    # 96 values of 2 bytes read, 3 slots of 8, 96 bytes and 12 scales of 4 written.
    assert store == Work(4 * 96, 192 + 24 + 96 + 48, "bf16")


@pytest.mark.parametrize("window", [None, 1, 3, 4, 7, 100])
def test_pairs_and_tokens_are_those_of_the_masks(window: int | None) -> None:
    layout = rows([5, 1, 9, 2], [5, 6, 12, 40], window)
    assert visible_pairs(layout) == sum(int(mask.sum()) for mask in _masks(layout))
    assert visible_tokens(layout) == int(layout.visible_lens_B.sum())


def _masks(layout: PagedRows) -> list[torch.Tensor]:
    on_host = PagedRows(
        layout.query_lens_B, layout.kv_lens_B, layout.page_table_BP, 1024, torch.device("cpu"), layout.window
    )
    return on_host.causal_masks


def test_experts_are_read_once_however_many_tokens_visit_them() -> None:
    # One token visits exactly its 2 of 8 experts; 2 visits of 6*4*6 + 5*6 + 2*4.
    one = work_of(
        "run_experts", empty(1, 4), empty(8, 12, 4), empty(8, 4, 6), _weights(1, 2), empty(1, 2, dtype=torch.int64)
    )
    assert one.flops == 2 * (144 + 30 + 8)
    assert one.bytes == pytest.approx(2 * 2 * (48 + 24) + 2 * 4 * 2 + 2 * (4 + 8))
    assert visited_experts(10_000, 8, 2) == pytest.approx(8)
    # Two tokens of one expert each among 2: the same one half of the time.
    assert visited_experts(2, 2, 1) == pytest.approx(1.5)


def _weights(tokens: int, top_k: int) -> torch.Tensor:
    return empty(tokens, top_k, dtype=torch.float32)


def test_quantised_experts() -> None:
    gate_up, down = StoredMatrix((96, 4), 480), StoredMatrix((32, 6), 256)
    ids, x = Shaped((1, 2), "int64"), Shaped((1, 4), "fp16")
    work = work_of("run_quantised_experts", x, gate_up, down, Shaped((1, 2), "fp32"), ids, 8, "w8a8")
    assert work.flops == 2 * (144 + 30 + 8)
    assert work.bytes == pytest.approx(16 + 24 + 736 / 4)
    assert work.dtype == "int8"
    assert work_of("run_quantised_experts", x, gate_up, down, ids, ids, 8, "w4a16").dtype == "fp16"


def test_the_small_ops_of_a_layer() -> None:
    x, w = empty(3, 8), empty(8)
    assert work_of("embedding", empty(3, dtype=torch.int64), empty(100, 8)) == Work(0, 24 + 96, "bf16")
    assert work_of("rms_norm", x, w, 1e-6) == Work(96, 96 + 16, "bf16")
    assert work_of("add_rms_norm", x, x, w, 1e-6) == Work(120, 192 + 16, "bf16")
    assert work_of("rope", empty(3, 2, 4), empty(3, 4), empty(3, 4)) == Work(72, 96 + 48, "bf16")
    assert work_of("silu_and_mul", x) == Work(60, 72, "bf16")
    assert work_of("add_gated", x, empty(3, 1), x) == Work(60, 150, "bf16")
    assert work_of("route", empty(3, 8), 2, True) == Work(144 + 12, 48 + 72, "bf16")
    assert work_of("route_grouped", empty(3, 8), empty(8), 2, 4, 2, "sigmoid", False) == Work(192, 136, "bf16")


def test_the_ops_that_choose_tokens() -> None:
    logits, one = empty(2, 64, dtype=torch.float32), empty(2, dtype=torch.float32)
    ids = empty(2, dtype=torch.int64)
    assert work_of("greedy", logits) == Work(128, 512 + 24, "fp32")
    assert work_of("sample", logits, one, ids, one, one, one) == Work(1024, 512 + 48 + 16, "fp32")
    assert work_of("adjust_logits", logits, ids, ids, one, one) == Work(6, 16 + 48, "fp32")
    assert work_of("mask_logits", logits, ids, empty(2, 2, dtype=torch.int32)) == Work(128, 32 + 512, "fp32")
    assert work_of("token_logprobs", logits, ids, 5) == Work(640, 528 + 2 * (4 + 60), "fp32")


def test_stand_ins_come_to_the_same_as_the_real_arguments() -> None:
    pool, lens = empty(1024, 2, 8), ([4, 2], [9, 2])
    real = work_of("attention_prefill", empty(6, 4, 8), pool, pool, rows(*lens), 0.35)
    shaped = Shaped((1024, 2, 8), "bf16")
    stood_in = RowLens(np.array(lens[0]), np.array(lens[1]))
    assert work_of("attention_prefill", Shaped((6, 4, 8), "bf16"), shaped, shaped, stood_in, 0.35) == real
    # 9 + 8 + 7 + 6 and 2 + 1 pairs.
    assert real.flops == 33 * 4 * 4 * 8


def test_a_sum_over_ranks_sends_what_no_algorithm_can_do_without() -> None:
    assert allreduce_bytes(1000, 1) == 0
    assert allreduce_bytes(1000, 2) == 1000
    assert allreduce_bytes(1000, 4) == 1500


def test_plans_can_be_made_without_torch() -> None:
    code = "import sys, sglk.backends.work; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
