"""Routing and experts against a dense sum over all of them, and against transformers' routers."""

import pytest
import torch
import torch.nn.functional as F
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from sglk.backends import cpu_moe_ops, moe_ops

HIDDEN, WIDTH = 24, 20

RUN = {"reference": moe_ops.run_experts.reference, "cpu": cpu_moe_ops.run_experts}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def dense(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Run every expert on every token and weigh those that were not chosen with 0."""
    gate, up = torch.einsum("te,xfe->txf", x, gate_up).chunk(2, dim=-1)
    each = torch.einsum("txf,xef->txe", F.silu(gate) * up, down)
    shares = torch.zeros(len(x), len(gate_up)).scatter_add_(1, ids, weights)
    return torch.einsum("tx,txe->te", shares, each)


def experts(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return randn(count, 2 * WIDTH, HIDDEN, seed=1) / HIDDEN**0.5, randn(count, HIDDEN, WIDTH, seed=2) / WIDTH**0.5


@pytest.mark.parametrize("run", RUN)
@pytest.mark.parametrize("tokens", [1, 5, 64])
@pytest.mark.parametrize(("count", "top_k"), [(1, 1), (6, 2), (6, 6), (10, 1), (62, 2), (64, 64)])
def test_experts_are_the_weighted_sum_of_the_chosen(count: int, top_k: int, tokens: int, run: str) -> None:
    x, (gate_up, down) = randn(tokens, HIDDEN), experts(count)
    weights, ids = moe_ops.route.reference(randn(tokens, count, seed=3), top_k, False)
    assert ids.shape == (tokens, top_k)
    torch.testing.assert_close(RUN[run](x, gate_up, down, weights, ids), dense(x, gate_up, down, weights, ids))


@pytest.mark.parametrize("run", RUN)
def test_all_tokens_may_visit_one_expert(run: str) -> None:
    x, (gate_up, down) = randn(9, HIDDEN), experts(6)
    # Experts that nobody chose are not even read: a NaN in them would show.
    gate_up[[0, 1, 2, 3, 5]] = torch.nan
    weights, ids = torch.rand(9, 1), torch.full((9, 1), 4)
    expected = dense(x, gate_up[4:5], down[4:5], weights, torch.zeros_like(ids))
    torch.testing.assert_close(RUN[run](x, gate_up, down, weights, ids), expected)


@pytest.mark.parametrize("run", RUN)
def test_a_token_has_the_same_experts_in_any_company(run: str) -> None:
    x, (gate_up, down) = randn(33, HIDDEN), experts(10)
    weights, ids = moe_ops.route.reference(randn(33, 10, seed=3), 3, True)
    together = RUN[run](x, gate_up, down, weights, ids)
    for token in (0, 17, 32):
        alone = RUN[run](x[token : token + 1], gate_up, down, weights[token : token + 1], ids[token : token + 1])
        torch.testing.assert_close(alone[0], together[token])


@pytest.mark.parametrize("run", RUN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_in_16_bits(dtype: torch.dtype, run: str) -> None:
    x, (gate_up, down) = randn(7, HIDDEN), experts(6)
    weights, ids = moe_ops.route.reference(randn(7, 6, seed=3), 2, True)
    out = RUN[run](x.to(dtype), gate_up.to(dtype), down.to(dtype), weights, ids)
    assert out.dtype is dtype
    torch.testing.assert_close(out.float(), dense(x, gate_up, down, weights, ids), atol=4e-2, rtol=4e-2)


@pytest.mark.parametrize("renormalise", [False, True])
def test_a_route_names_the_likeliest_experts(renormalise: bool) -> None:
    logits = randn(11, 7)
    weights, ids = moe_ops.route.reference(logits.to(torch.bfloat16), 3, renormalise)
    probabilities = logits.to(torch.bfloat16).float().softmax(-1)
    assert weights.dtype is torch.float32
    assert torch.equal(probabilities.gather(1, ids).sort(descending=True).values, probabilities.topk(3).values)
    torch.testing.assert_close(weights.sum(-1), torch.ones(11) if renormalise else probabilities.topk(3).values.sum(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_weighs_what_is_added(dtype: torch.dtype) -> None:
    x, gate, y = (tensor.to(dtype) for tensor in (randn(5, 8), randn(5, 1, seed=1), randn(5, 8, seed=2)))
    expected, tolerance = x + torch.sigmoid(gate) * y, 1e-6 if dtype is torch.float32 else 2e-2
    for add in (moe_ops.add_gated.reference, cpu_moe_ops.add_gated):
        torch.testing.assert_close(add(x, gate, y), expected, atol=tolerance, rtol=tolerance)


def shares(weights: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Spread weights over all experts, so that the order of the chosen does not count."""
    return torch.zeros(len(ids), count).scatter_(1, ids, weights)


@pytest.mark.parametrize(("count", "groups", "kept", "top_k"), [(16, 4, 2, 3), (64, 8, 3, 8), (12, 2, 1, 6)])
@pytest.mark.parametrize("renormalise", [False, True])
def test_grouped_routes_by_sigmoid_are_those_of_deepseek_v3(
    count: int, groups: int, kept: int, top_k: int, renormalise: bool
) -> None:
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        num_attention_heads=4,
        n_routed_experts=count,
        n_group=groups,
        topk_group=kept,
        num_experts_per_tok=top_k,
        norm_topk_prob=renormalise,
        routed_scaling_factor=1.0,
    )
    router = DeepseekV3TopkRouter(config)
    router.weight.data = randn(count, HIDDEN, seed=5)
    router.e_score_correction_bias = 0.3 * randn(count, seed=6).abs()
    x = randn(40, HIDDEN)
    with torch.no_grad():
        logits, weights, ids = router(x)
    got = moe_ops.route_grouped.reference(
        logits, router.e_score_correction_bias, top_k, groups, kept, "sigmoid", renormalise
    )
    torch.testing.assert_close(shares(*got, count), shares(weights, ids, count))


def test_grouped_routes_by_softmax_are_those_of_deepseek_v2() -> None:
    config = DeepseekV2Config(
        hidden_size=HIDDEN,
        num_attention_heads=4,
        n_routed_experts=16,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=3,
        topk_method="group_limited_greedy",
        routed_scaling_factor=1.0,
    )
    router = DeepseekV2TopkRouter(config)
    router.weight.data = randn(16, HIDDEN, seed=5)
    with torch.no_grad():
        logits, weights, ids = router(randn(40, HIDDEN))
    got = moe_ops.route_grouped.reference(logits, None, 3, 4, 2, "softmax", False)
    torch.testing.assert_close(shares(*got, 16), shares(weights, ids, 16))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_groups_of_one_expert_are_experts(scoring: moe_ops.Scoring) -> None:
    logits = randn(20, 8)
    got = moe_ops.route_grouped.reference(logits, None, 2, 8, 3, scoring, True)
    free = moe_ops.route_grouped.reference(logits, None, 2, 1, 1, scoring, True)
    torch.testing.assert_close(shares(*got, 8), shares(*free, 8))


def test_a_bias_below_zero_does_not_bring_other_groups_back() -> None:
    _, ids = moe_ops.route_grouped.reference(randn(20, 8), torch.full((8,), -5.0), 4, 2, 1, "sigmoid", False)
    assert ((ids < 4).all(-1) | (ids >= 4).all(-1)).all()
