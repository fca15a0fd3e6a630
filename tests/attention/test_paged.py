import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglk.attention.base import AttentionStep
from sglk.attention.paged import PagedAttention, new_slots, page_table
from sglk.backends import reference
from sglk.backends.constraints import one_of
from sglk.backends.cpu import CpuBackend
from sglk.cache.kv import KVLayout, KVPool

HEADS, KV_HEADS, WIDTH = 4, 2, 8


@st.composite
def steps(draw: st.DrawFn) -> tuple[AttentionStep, int]:
    """Draw rows with some past, prefills first, on pages that nobody shares, and a page size."""
    page_size = draw(st.sampled_from([1, 3, 16]))
    prefills = draw(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), max_size=3))
    decodes = draw(st.lists(st.tuples(st.just(1), st.integers(1, 40)), min_size=0 if prefills else 1, max_size=3))
    rows = prefills + decodes
    query_lens = np.array([queries for queries, _ in rows])
    kv_lens = np.array([queries + past for queries, past in rows])
    needed = [-(-length // page_size) + draw(st.integers(0, 2)) for length in kv_lens.tolist()]
    order = draw(st.permutations(range(sum(needed))))
    ends = np.cumsum(needed).tolist()
    pages = [order[end - count : end] for end, count in zip(ends, needed, strict=True)]
    return AttentionStep(query_lens, kv_lens, pages, len(prefills)), page_size


@given(steps())
@settings(max_examples=60, deadline=None)
def test_every_token_has_the_slot_that_its_page_says(drawn: tuple[AttentionStep, int]) -> None:
    step, page_size = drawn
    table = page_table(step.pages, step.kv_lens, page_size)
    slots = new_slots(step.query_lens, step.kv_lens, table, page_size).tolist()
    expected = [
        pages[position // page_size] * page_size + position % page_size
        for queries, length, pages in zip(step.query_lens.tolist(), step.kv_lens.tolist(), step.pages, strict=True)
        for position in range(length - queries, length)
    ]
    assert slots == expected
    assert len(set(slots)) == len(slots)


@given(steps(), st.sampled_from([None, 1, 5, 16]), st.integers(0, 2**31))
@settings(max_examples=90, deadline=None)
def test_each_row_attends_to_its_own_past_and_itself(
    drawn: tuple[AttentionStep, int], window: int | None, seed: int
) -> None:
    step, page_size = drawn
    backend = CpuBackend(num_threads=1)
    pool = KVPool(backend, KVLayout(2, KV_HEADS, WIDTH, torch.float32), sum(map(len, step.pages)), page_size)
    for tensor in (*pool.keys, *pool.values):
        tensor.fill_(torch.nan)
    # The second layer sees everything, whatever the first does.
    attention = PagedAttention(backend, pool, HEADS, torch.float32, windows=(window, None))
    rng = torch.Generator().manual_seed(seed)
    whole = [
        [torch.randn(length, heads, WIDTH, generator=rng) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        for length in step.kv_lens.tolist()
    ]
    past = step.kv_lens - step.query_lens
    for row, length in enumerate(past.tolist()):
        if length:
            attention.plan(AttentionStep(past[row : row + 1], past[row : row + 1], [step.pages[row]], 1))
            for layer in range(2):
                attention.forward(layer, *(tensor[:length] for tensor in whole[row]))
    attention.plan(step)
    fresh = [
        torch.cat([tensors[part][length:] for tensors, length in zip(whole, past.tolist(), strict=True)])
        for part in range(3)
    ]
    for layer, limit in enumerate((window, None)):
        out = attention.forward(layer, *fresh)
        rows = zip(whole, past.tolist(), strict=True)
        expected = torch.cat([dense(*tensors, limit)[length:] for tensors, length in rows])
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_a_kernel_that_knows_no_window_is_not_given_one() -> None:
    backend = CpuBackend(num_threads=1)
    for op in (reference.attention_prefill, reference.attention_decode):
        backend.ops.register(op, "vendor", op.reference, one_of("window", 0))
    pool = KVPool(backend, KVLayout(3, KV_HEADS, WIDTH, torch.float32), 1, 16)
    PagedAttention(backend, pool, HEADS, torch.float32, windows=(None, 8, None))
    chosen = {dict(choice.traits)["window"]: choice.provider for choice in backend.ops.choices() if "att" in choice.op}
    assert chosen[0] == "vendor"
    assert chosen[8] in ("cpu", "cpu_kernels")  # as there is a compiler


def dense(q_THD: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor, window: int | None) -> torch.Tensor:
    """Attend causally over one whole row without a pool."""
    k_THD, v_THD = (tensor.repeat_interleave(HEADS // KV_HEADS, dim=1) for tensor in (k_TKD, v_TKD))
    scores = torch.einsum("qhd,khd->hqk", q_THD, k_THD) * WIDTH**-0.5
    unseen = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    if window is not None:
        unseen |= torch.ones_like(unseen).tril(-window)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -torch.inf).softmax(-1), v_THD)
