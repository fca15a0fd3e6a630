"""Attention by the cpu backend's own kernels: a query comes to the same bits beside any others and in any chunk."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from sglk.backends import reference
from sglk.backends.constraints import Trait
from sglk.backends.cpu_kernels.attention import AttentionKernel
from sglk.backends.cpu_kernels.calls import Calls
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.dtypes import torch_dtype
from sglk.backends.kv_values import KVScales
from sglk.backends.ops import BoundOp, Op
from sglk.backends.rows import PagedRows
from tests.backends.own_kernels import built, chosen, randn

pytestmark = built

KV_DTYPES = ("fp32", "fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2")
HEADS, KV_HEADS, WIDTH, PAGE_SIZE = 6, 2, 40, 16


def filled_pool(slots: int, kv_dtype: str, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, KVScales | None]:
    dtype = torch_dtype(kv_dtype)
    keys, values = (torch.empty(slots, KV_HEADS, width, dtype=dtype) for _ in range(2))
    scales = KVScales(torch.empty(slots, KV_HEADS), torch.empty(slots, KV_HEADS)) if kv_dtype == "int8" else None
    k, v = randn(slots, KV_HEADS, width), randn(slots, KV_HEADS, width, seed=1)
    reference.store_kv.reference(k, v, keys, values, torch.arange(slots), scales)
    return keys, values, scales


def tolerance(kv_dtype: str) -> float:
    """Where keys and values in int8 are multiplied as integers, so are queries and weights, of 16 bits."""
    return 2e-4 if kv_dtype == "int8" else 1e-5


def rows_of(tables: list[list[int]], queries: list[int], lens: list[int], window: int | None) -> PagedRows:
    return PagedRows(np.array(queries), np.array(lens), np.array(tables), PAGE_SIZE, torch.device("cpu"), window)


def attention(op: Op[..., Any], kv_dtype: str, window: int | None, width: int = WIDTH) -> BoundOp[..., Any]:
    traits: dict[str, Trait] = {"head_dim": width, "kv_heads": KV_HEADS, "heads": HEADS, "page_size": PAGE_SIZE}
    return chosen(op, **traits, kv_dtype=kv_dtype, window=window or 0)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("window", "width"), [(None, 40), (70, 44), (700, 6)])
def test_a_query_comes_to_the_same_bits_in_any_chunk_and_in_a_decode(
    kv_dtype: str, window: int | None, width: int
) -> None:
    """The row is long enough to be summed in several parts; a second row stands beside it in one of the calls."""
    length, columns = 1300, -(-1300 // PAGE_SIZE)
    keys, values, scales = filled_pool(2 * columns * PAGE_SIZE, kv_dtype, width)
    pages, other = np.random.default_rng(0).permutation(2 * columns).reshape(2, columns).tolist()
    q_THD = randn(length, HEADS, width, seed=2)
    prefill, decode = (
        attention(op, kv_dtype, window, width) for op in (reference.attention_prefill, reference.attention_decode)
    )

    whole = rows_of([pages], [length], [length], window)
    whole_THD = prefill(q_THD, keys, values, whole, 0.2, scales)
    expected = reference.attention_prefill.reference(q_THD, keys, values, whole, 0.2, scales)
    torch.testing.assert_close(whole_THD, expected, atol=tolerance(kv_dtype), rtol=tolerance(kv_dtype))

    start = 0
    for count in (1, 7, 100, 13, 500, 200, 479):
        q = torch.cat((randn(33, HEADS, width), q_THD[start : start + count]))
        rows = rows_of([other, pages], [33, count], [40, start + count], window)
        chunk_THD = prefill(q, keys, values, rows, 0.2, scales)[33:]
        assert torch.equal(chunk_THD, whole_THD[start : start + count]), start
        start += count
    assert start == length

    lens = [1, 31, 32, 33, 512, 513, 1000, 1300]
    rows = rows_of([pages] * len(lens), [1] * len(lens), lens, window)
    last = torch.tensor(lens) - 1
    assert torch.equal(decode(q_THD[last], keys, values, rows, 0.2, scales), whole_THD[last])


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("width", [6, 40, 64])
def test_narrower_registers_change_no_bit_of_attention(kv_dtype: str, width: int, narrow: ctypes.CDLL) -> None:
    length, columns = 600, -(-600 // PAGE_SIZE)
    keys, values, scales = filled_pool(columns * PAGE_SIZE, kv_dtype, width)
    q_THD = randn(length, HEADS, width, seed=2)
    results = []
    for each in (kernels(), narrow):
        assert isinstance(each, ctypes.CDLL)
        kernel = AttentionKernel(Calls(each, 2))
        rows = rows_of([list(range(columns))], [length], [length], None)
        decodes = rows_of([list(range(columns))] * 3, [1] * 3, [1, 40, length], None)
        decoded = kernel.decode(q_THD[:3], keys, values, decodes, 0.2, scales)
        results.append(torch.cat((kernel.prefill(q_THD, keys, values, rows, 0.2, scales), decoded)))
    if kv_dtype == "int8":
        # The widest registers multiply those as integers.
        torch.testing.assert_close(*results, atol=tolerance(kv_dtype), rtol=tolerance(kv_dtype))
    else:
        assert torch.equal(*results)


@pytest.mark.parametrize(("width", "window"), [(64, None), (6, 40), (44, None), (255, None)])
def test_what_multiplying_int8_loses_is_little_beside_what_int8_has_lost(width: int, window: int | None) -> None:
    """Of queries large and small, and of one with a number far larger than all of its others."""
    length = 90
    keys, values, scales = filled_pool(6 * PAGE_SIZE, "int8", width)
    assert scales is not None
    decode = attention(reference.attention_decode, "int8", window, width)
    sizes = torch.tensor([1e-42, 1e-30, 1e-3, 1.0, 30.0, 1.0])
    rows = rows_of([list(range(6))] * len(sizes), [1] * len(sizes), [length] * len(sizes), window)
    q_BHD = randn(len(sizes), HEADS, width, seed=2) * sizes[:, None, None]
    q_BHD[-1, :, 0] *= 50

    def exactly(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        seen = slice(0 if window is None else length - window, length)
        k, v = (each[seen].double().repeat_interleave(HEADS // KV_HEADS, 1) for each in (keys, values))
        weights = torch.softmax(torch.einsum("bhd,shd->bhs", q_BHD.double(), k) * width**-0.5, -1)
        return torch.einsum("bhs,shd->bhd", weights, v)

    slots = len(keys)
    meant = exactly(randn(slots, KV_HEADS, width), randn(slots, KV_HEADS, width, seed=1))
    held = exactly(
        *(
            each.double() * scale[..., None].double()
            for each, scale in ((keys, scales.keys_SK), (values, scales.values_SK))
        )
    )
    got = decode(q_BHD, keys, values, rows, width**-0.5, scales)
    lost, loses = ((each - held).norm(dim=(1, 2)) for each in (meant, got))
    assert (loses * 25 < lost).all(), lost / loses


@pytest.mark.parametrize("size", [1e-36, 1e-20, 1e30])
def test_values_in_int8_are_of_any_size_and_may_be_zeros(size: float) -> None:
    keys, values, scales = filled_pool(4 * PAGE_SIZE, "int8")
    assert scales is not None
    decode = attention(reference.attention_decode, "int8", None)
    rows, q_BHD = rows_of([list(range(4))], [1], [60], None), randn(1, HEADS, WIDTH)
    scales.values_SK[:32] = 0
    expected = decode(q_BHD, keys, values, rows, 0.2, scales)
    scales.values_SK.mul_(size)
    torch.testing.assert_close(decode(q_BHD, keys, values, rows, 0.2, scales) / size, expected, atol=1e-4, rtol=1e-4)
    scales.values_SK.zero_()
    assert (decode(q_BHD, keys, values, rows, 0.2, scales) == 0).all()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_wrong_with_a_query_shows_in_its_own_line(wrong: float) -> None:
    for kv_dtype in KV_DTYPES:
        keys, values, scales = filled_pool(PAGE_SIZE, kv_dtype)
        decode = attention(reference.attention_decode, kv_dtype, None)
        q_BHD = randn(2, HEADS, WIDTH)
        rows = rows_of([[0]] * 2, [1] * 2, [5] * 2, None)
        clean = decode(q_BHD, keys, values, rows, 1.0, scales)
        q_BHD[1, 2, 7] = wrong
        got = decode(q_BHD, keys, values, rows, 1.0, scales)
        assert got[1, 2].isnan().any()
        others = [(0, head) for head in range(HEADS)] + [(1, head) for head in range(HEADS) if head != 2]
        assert all(torch.equal(got[at], clean[at]) for at in others)


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2", "fp16", "bf16"])
def test_nan_in_a_key_shows_and_the_least_numbers_count(kv_dtype: str) -> None:
    keys, values, _ = filled_pool(PAGE_SIZE, kv_dtype)
    decode = attention(reference.attention_decode, kv_dtype, None)
    rows, q_BHD = rows_of([[0]], [1], [5], None), randn(1, HEADS, WIDTH)
    tiny = torch.finfo(keys.dtype).smallest_normal / 4
    values[:] = torch.full(values.shape, tiny).to(values.dtype)
    assert float(values[0, 0, 0]) == tiny
    got = decode(q_BHD, keys, values, rows, 1.0, None)
    torch.testing.assert_close(got / tiny, torch.ones_like(got))
    spoilt = keys.float()
    spoilt[3] = torch.nan
    assert decode(q_BHD, spoilt.to(keys.dtype), values, rows, 1.0, None).isnan().all()


@pytest.mark.parametrize("wrong", [torch.nan, -torch.nan, torch.inf])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [None, 10])
def test_a_query_takes_no_harm_from_values_that_it_does_not_see(
    kv_dtype: str, window: int | None, wrong: float
) -> None:
    if kv_dtype == "fp8_e4m3" and wrong == torch.inf:
        pytest.skip("has no infinity")
    length = 100
    keys, values, scales = filled_pool(112, kv_dtype)
    prefill = attention(reference.attention_prefill, kv_dtype, window)
    q_THD, rows = randn(length, HEADS, WIDTH), rows_of([[*range(7)]], [length], [length], window)
    clean_THD = prefill(q_THD, keys, values, rows, 0.2, scales)
    if scales is not None:
        scales.values_SK[50] = wrong
    else:
        spoilt = values.float()
        spoilt[50] = wrong
        values = spoilt.to(values.dtype)
    got_THD = prefill(q_THD, keys, values, rows, 0.2, scales)
    seeing = slice(50, length if window is None else 50 + window)
    assert not got_THD[seeing].isfinite().any()
    for others in (slice(0, 50), slice(seeing.stop, length)):
        assert torch.equal(got_THD[others], clean_THD[others])
