"""Every op of the cpu backend against the reference, over shapes."""

import pytest
import torch

from sglk.backends import cpu_ops, moe_ops, quantised_linear, quantised_moe, reference, sampling_ops
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import REFERENCE, known_ops
from tests.backends.tensors import close, paged_rows, randn

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def test_the_backend_runs_every_op_itself() -> None:
    ops = CpuBackend(fallback="forbid").ops
    defined = vars(reference) | vars(moe_ops) | vars(sampling_ops) | vars(quantised_linear) | vars(quantised_moe)
    providers = {ops.select(defined[name]).choice.provider for name in known_ops()}
    assert providers == {"cpu"}
    assert REFERENCE not in providers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (7, 576), (33, 96)])
def test_norms(tokens: int, width: int, dtype: torch.dtype) -> None:
    x, residual, weight = randn(tokens, width, dtype=dtype), randn(tokens, width, dtype=dtype, seed=1), randn(width)
    weight = weight.to(dtype)
    close(cpu_ops.rms_norm(x, weight, 1e-5), reference.rms_norm.reference(x, weight, 1e-5))
    expected = reference.add_rms_norm.reference(x.clone(), residual.clone(), weight, 1e-5)
    for got, want in zip(cpu_ops.add_rms_norm(x, residual, weight, 1e-5), expected, strict=True):
        close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 1, 2), (5, 12, 64), (130, 3, 16)])
def test_rope_and_activation(tokens: int, heads: int, width: int, dtype: torch.dtype) -> None:
    x = randn(tokens, heads + 2, width, dtype=dtype)[:, :heads]
    angles = randn(tokens, width // 2, seed=1).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    close(cpu_ops.rope(x, cos, sin), reference.rope.reference(x, cos, sin))
    close(cpu_ops.silu_and_mul(x[:, 0]), reference.silu_and_mul.reference(x[:, 0]))


def test_embedding() -> None:
    weight, ids = randn(11, 8), torch.tensor([10, 0, 3, 3])
    assert torch.equal(cpu_ops.embedding(ids, weight), reference.embedding.reference(ids, weight))


SHAPES = [(4, 4, 16), (9, 3, 64), (4, 1, 32)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("page_size", "window"), [(1, None), (16, None), (16, 8), (1, 33)])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES)
def test_prefill_attention(
    heads: int, kv_heads: int, width: int, page_size: int, window: int | None, dtype: torch.dtype
) -> None:
    query_lens, kv_lens = [1, 5, 40, 1, 17], [1, 37, 40, 30, 18]
    rows, slots = paged_rows(query_lens, kv_lens, page_size, window)
    q = randn(sum(query_lens), heads, width, dtype=dtype)
    k, v = randn(slots, kv_heads, width, dtype=dtype, seed=1), randn(slots, kv_heads, width, dtype=dtype, seed=2)
    close(
        cpu_ops.attention_prefill(q, k, v, rows, width**-0.5),
        reference.attention_prefill.reference(q, k, v, rows, width**-0.5),
    )


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize(("page_size", "window"), [(1, None), (16, None), (16, 20)])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES)
def test_decode_attention(
    heads: int, kv_heads: int, width: int, page_size: int, window: int | None, kv_dtype: torch.dtype
) -> None:
    kv_lens = [1, 37, 16, 130]
    rows, slots = paged_rows([1] * 4, kv_lens, page_size, window)
    q = randn(4, heads, width)
    k, v = randn(slots, kv_heads, width, dtype=kv_dtype, seed=1), randn(slots, kv_heads, width, dtype=kv_dtype, seed=2)
    close(
        cpu_ops.attention_decode(q, k, v, rows, width**-0.5),
        reference.attention_decode.reference(q, k, v, rows, width**-0.5),
    )


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("window", [None, 10])
def test_reference_attention_keeps_what_is_not_finite_to_those_who_see_it(wrong: float, window: int | None) -> None:
    rows, slots = paged_rows([40, 7], [60, 7], 1, window)
    q, k, v = randn(47, 6, 8), randn(slots, 2, 8, seed=1), randn(slots, 2, 8, seed=2)
    clean = reference.attention_prefill.reference(q, k, v, rows, 0.5)
    v[rows.page_table_BP[0, 45], 1, 3] = wrong
    out = reference.attention_prefill.reference(q, k, v, rows, 0.5)
    # Queries 0..39 are tokens 20..59 of the first row, and heads 3..5 read the second key/value head.
    hurt = torch.zeros(out.shape, dtype=torch.bool)
    hurt[25 : 40 if window is None else 35, 3:, 3] = True
    assert out[hurt].isnan().all()
    assert torch.equal(out[~hurt], clean[~hurt])


def test_reference_attention_is_softmax_of_scaled_scores() -> None:
    rows, slots = paged_rows([2], [3], 1)
    q, k, v = randn(2, 2, 4), randn(slots, 1, 4, seed=1), randn(slots, 1, 4, seed=2)
    out = reference.attention_prefill.reference(q, k, v, rows, 0.5)
    order = rows.slots_BL[0]
    for query, visible in ((0, 2), (1, 3)):
        for head in range(2):
            weights = torch.softmax(0.5 * k[order[:visible], 0] @ q[query, head], dim=0)
            torch.testing.assert_close(out[query, head], weights @ v[order[:visible], 0])
