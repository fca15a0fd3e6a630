"""Ops of the kunlun backend over stand-ins for the vendor's; nothing here is a verification on hardware."""

from typing import Any

import pytest
import torch

from sglk.backends import moe_ops, quantised_linear, reference, sampling_ops
from sglk.backends.ops import REFERENCE
from sglk.backends.quantise import quantise_int8
from sglk.backends.quantised_moe import run_quantised_experts
from tests.backends.kunlun_on_cpu import ATTENTION, BF16, MOE, KunlunOnCpu, chip
from tests.backends.tensors import close, paged_rows, randn


@pytest.mark.usefixtures("sdk")
def test_every_op_of_a_dense_model_has_the_vendor_or_torch_to_run_it() -> None:
    ops = KunlunOnCpu(fallback="forbid", chip=chip()).ops
    chosen = {
        ops.select(op, **traits).choice.provider
        for op, traits in (
            (reference.embedding, {}),
            (reference.linear, {}),
            (reference.rms_norm, {"dtype": "bf16"}),
            (reference.add_rms_norm, {"dtype": "bf16"}),
            (reference.rope, {"dtype": "bf16", "head_dim": 64}),
            (reference.silu_and_mul, {"dtype": "bf16", "size": 128}),
            (reference.store_kv, ATTENTION),
            (reference.attention_prefill, ATTENTION | {"window": 0}),
            (reference.attention_decode, ATTENTION | {"window": 0}),
            (sampling_ops.greedy, {}),
            (sampling_ops.sample, {}),
        )
    }
    assert chosen == {"kunlun_ops", "xspeedgate_ops", "torch_xmlir"}


@pytest.mark.usefixtures("sdk")
def test_blocks_are_those_of_the_reference() -> None:
    ops = KunlunOnCpu(fallback="forbid").ops
    x, residual, weight = randn(5, 3, 64, dtype=BF16), randn(5, 64, dtype=BF16, seed=1), randn(64, dtype=BF16, seed=2)
    norm = ops.select(reference.rms_norm, dtype="bf16")
    close(norm(x[:, :2], weight, 1e-5), reference.rms_norm.reference(x[:, :2], weight, 1e-5))
    add = ops.select(reference.add_rms_norm, dtype="bf16")
    expected = reference.add_rms_norm.reference(x[:, 0], residual, weight, 1e-5)
    for got, want in zip(add(x[:, 0], residual.clone(), weight, 1e-5), expected, strict=True):
        close(got, want)
    activate = ops.select(reference.silu_and_mul, dtype="bf16", size=32)
    close(activate(x[:, 0]), reference.silu_and_mul.reference(x[:, 0]))
    angles = randn(5, 32, seed=3).repeat(1, 2)
    cos, sin = angles.cos().to(BF16), angles.sin().to(BF16)
    rope = ops.select(reference.rope, dtype="bf16", head_dim=64)
    close(rope(x[:, :2], cos, sin), reference.rope.reference(x[:, :2], cos, sin))


@pytest.mark.usefixtures("sdk")
def test_attention_over_head_major_pages() -> None:
    ops = KunlunOnCpu(fallback="forbid").ops
    kv_lens = [1, 150, 300]
    for op, lens in ((reference.attention_prefill, [1, 20, 300]), (reference.attention_decode, [1, 1, 1])):
        rows, slots = paged_rows(lens, kv_lens, 128)
        pools = [torch.full((slots // 128, 2, 128, 64), torch.nan, dtype=BF16) for _ in range(2)]
        written = torch.cat([torch.from_numpy(rows.slots_BL[row, :length]) for row, length in enumerate(kv_lens)])
        keys, values = (randn(len(written), 2, 64, dtype=BF16, seed=seed) for seed in (1, 2))
        ops.select(reference.store_kv, **ATTENTION)(keys, values, *pools, written)
        q = randn(sum(lens), 8, 64, dtype=BF16)
        got = ops.select(op, **ATTENTION, window=0)(q, *pools, rows, 0.125)
        # Slots that nobody wrote are not a number, and stay out of it on both roads.
        close(got, op.reference(q, *pools, rows, 0.125))


@pytest.mark.usefixtures("sdk")
def test_experts_and_their_routing() -> None:
    ops = KunlunOnCpu(fallback="forbid", chip=chip()).ops
    x, logits = randn(9, 64, dtype=BF16), randn(9, 8, seed=1)
    gate_up, down = randn(8, 64, 64, dtype=BF16, seed=2) / 8, randn(8, 64, 32, dtype=BF16, seed=3) / 8
    weights, ids = ops.select(moe_ops.route, **MOE, renormalise=True)(logits, 2, True)
    wanted, wanted_ids = moe_ops.route.reference(logits, 2, True)
    assert torch.equal(ids, wanted_ids)
    close(weights, wanted)
    grouped = ops.select(moe_ops.route_grouped, **MOE, renormalise=True, scoring="sigmoid")
    for bias in (None, randn(8, seed=4)):
        arguments: tuple[Any, ...] = (logits, bias, 2, 4, 2, "sigmoid", True)
        for got, want in zip(grouped(*arguments), moe_ops.route_grouped.reference(*arguments), strict=True):
            close(got.float(), want.float())
    run = ops.select(moe_ops.run_experts, **MOE)
    close(run(x, gate_up, down, weights, ids), moe_ops.run_experts.reference(x, gate_up, down, weights, ids))
    packed = [quantise_int8(part.flatten(0, 1), part.shape[2]) for part in (gate_up, down)]
    run_int8 = ops.select(run_quantised_experts, **MOE, scheme="w8a8", group_size=-1)
    expected = run_quantised_experts.reference(x, *packed, weights, ids, 8, "w8a8")
    close(run_int8(x, *packed, weights, ids, 8, "w8a8"), expected)


@pytest.mark.usefixtures("sdk")
def test_int8_products_and_cut_distributions() -> None:
    ops = KunlunOnCpu(fallback="forbid").ops
    linear = ops.select(quantised_linear.linear_w8a8, dtype="bf16", group_size=-1)
    weight, x = quantise_int8(randn(48, 64) / 8, 64), randn(5, 64, dtype=BF16, seed=1)
    x[2] = 0
    for bias in (None, randn(48, dtype=BF16, seed=2)):
        close(linear(x, weight, bias), quantised_linear.linear_w8a8.reference(x, weight, bias))
    rows = 200
    arguments = (
        randn(rows, 50, seed=3),
        torch.full((rows,), 0.8),
        torch.arange(rows) % 7,
        torch.linspace(0.3, 1.0, rows),
        torch.linspace(0.0, 0.2, rows),
        torch.rand(rows, generator=torch.Generator().manual_seed(0)),
    )
    assert torch.equal(ops.select(sampling_ops.sample)(*arguments), sampling_ops.sample.reference(*arguments))


@pytest.mark.parametrize(
    ("op", "traits", "reason"),
    [
        (reference.attention_decode, ATTENTION | {"window": 24}, "window in {0}"),
        (reference.attention_prefill, ATTENTION | {"window": 0, "head_dim": 80}, "head_dim in {64, 128, 192, 256}"),
        (reference.store_kv, ATTENTION | {"dtype": "fp32"}, "dtype in {fp16, bf16}"),
        (reference.silu_and_mul, {"dtype": "bf16", "size": 6}, "size % 4 == 0"),
        (moe_ops.run_experts, MOE | {"experts": 6}, "experts % 4 == 0"),
        (moe_ops.run_experts, MOE | {"experts": 896}, "experts <= 512"),
        (moe_ops.route, MOE | {"renormalise": False}, "renormalise in {True}"),
        (quantised_linear.linear_w8a8, {"dtype": "bf16", "group_size": 128}, "group_size in {-1}"),
    ],
)
@pytest.mark.usefixtures("sdk")
def test_a_shape_beyond_the_declared_limits_runs_the_reference(op: Any, traits: dict[str, Any], reason: str) -> None:
    choice = KunlunOnCpu(chip=chip()).ops.select(op, **traits).choice
    assert (choice.provider, choice.reason) == (REFERENCE, f"kunlun_ops: {reason}")
