"""The own kernels of the cpu backend: no token's result depends on its neighbours, and packing loses nothing."""

from typing import Any

import numpy as np
import pytest
import torch

from sglk.backends import quantised_linear, reference
from sglk.backends.constraints import Trait
from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.cpu_kernels.panels import pack_exactly
from sglk.backends.cpu_kernels.registration import PROVIDER
from sglk.backends.kv_values import KVScales
from sglk.backends.ops import BoundOp, Op
from sglk.backends.quantise import quantise_int4, quantise_int8
from sglk.backends.rows import PagedRows

pytestmark = pytest.mark.skipif(isinstance(kernels(), str), reason="the kernels cannot be built here")

TOKENS = 40
SCHEMES = ("fp32", "fp16", "bf16", "w8a8", "w8a16", "w4a16")


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chosen(op: Op[..., Any], **traits: Trait) -> BoundOp[..., Any]:
    bound = CpuBackend(num_threads=2).ops.select(op, dtype="fp32", **traits)
    assert bound.choice.provider == PROVIDER, bound.choice.reason
    return bound


def product(scheme: str, inputs: int, outputs: int) -> tuple[BoundOp[..., Any], Any, Any]:
    """Return the op of a scheme, a weight of that scheme, and the weight as the op's kernel wants it."""
    traits: dict[str, Trait] = {"in_features": inputs, "out_features": outputs}
    plain = randn(outputs, inputs, seed=1)
    if scheme.startswith("w"):
        bound = chosen(vars(quantised_linear)[f"linear_{scheme}"], **traits, group_size=32)
        weight: Any = quantise_int4(plain, 32, False) if scheme == "w4a16" else quantise_int8(plain, 32)
    else:
        bound = chosen(reference.linear, **traits)
        # Numbers that fp16 has and bf16 has not, or the other way round.
        weight = {"fp32": plain, "fp16": plain.half().float(), "bf16": plain.bfloat16().float() * 2.0**100}[scheme]
    assert bound.packing is not None
    return bound, weight, bound.packing.pack(weight)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 100), (1056, 65)])
def test_a_token_alone_and_among_others_comes_to_the_same_bits(scheme: str, inputs: int, outputs: int) -> None:
    bound, _, packed = product(scheme, inputs, outputs)
    x_TE, bias_O = randn(TOKENS, inputs, seed=2), randn(outputs, seed=3)
    alone_TO = torch.cat([bound(x_TE[token : token + 1], packed, bias_O) for token in range(TOKENS)])
    for count in range(2, 34):
        for start in (0, 3):
            together_TO = bound(x_TE[start : start + count], packed, bias_O)
            assert torch.equal(together_TO, alone_TO[start : start + count]), count


@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_tokens_agree_with_the_reference(scheme: str) -> None:
    bound, weight, packed = product(scheme, 544, 72)
    x_TE = randn(300, 544, seed=2)
    expected_TO = bound.op.reference(x_TE, weight, None)
    torch.testing.assert_close(bound(x_TE, packed, None) / expected_TO.std(), expected_TO / expected_TO.std())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_token_comes_to_nothing(scheme: str) -> None:
    """A step in which no row wants logits has none."""
    bound, _, packed = product(scheme, 64, 70)
    assert bound(randn(0, 64), packed, None).shape == (0, 70)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_unpacking_gives_back_what_was_packed(scheme: str) -> None:
    bound, weight, packed = product(scheme, 64, 70)
    assert bound.packing is not None
    unpacked = bound.packing.unpack(packed)
    parts = [(weight, unpacked)]
    if scheme.startswith("w"):
        parts = [(getattr(weight, part), getattr(unpacked, part)) for part in ("values", "scales_OG", "zeros_OG")]
    for want, got in parts:
        assert (want is None and got is None) or (want.dtype == got.dtype and torch.equal(want, got))


def test_weights_take_16_bits_only_where_that_loses_nothing() -> None:
    plain = randn(64, 32)
    kinds = [pack_exactly(weight).numbers.dtype for weight in (plain, plain.half().float(), plain.bfloat16().float())]
    # These bf16 numbers are small enough to be fp16 numbers too.
    assert kinds == [torch.float32, torch.float16, torch.float16]
    assert pack_exactly(plain.bfloat16().float() * 2.0**100).numbers.dtype is torch.bfloat16


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nan_stays_with_its_token(scheme: str) -> None:
    bound, _, packed = product(scheme, 64, 70)
    x_TE = randn(9, 64)
    clean_TO = bound(x_TE, packed, None)
    x_TE[4, 7] = torch.nan
    spoilt_TO = bound(x_TE, packed, None)
    assert spoilt_TO[4].isnan().all()
    others = [token for token in range(9) if token != 4]
    assert torch.equal(spoilt_TO[others], clean_TO[others])


def test_an_id_outside_of_the_vocabulary_is_refused() -> None:
    bound, packed = chosen(reference.embedding, size=8), pack_exactly(randn(10, 8))
    for wrong in (10, -1):
        with pytest.raises(IndexError, match="vocabulary of 10"):
            bound(torch.tensor([3, wrong]), packed)


def filled_pool(slots: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, KVScales | None]:
    keys, values = (torch.empty(slots, 2, 64, dtype=dtype) for _ in range(2))
    scales = KVScales(torch.empty(slots, 2), torch.empty(slots, 2)) if dtype is torch.int8 else None
    written = torch.arange(slots)
    reference.store_kv.reference(randn(slots, 2, 64), randn(slots, 2, 64, seed=1), keys, values, written, scales)
    return keys, values, scales


def rows_of(tables: list[list[int]], lens: list[int], page_size: int, window: int | None) -> PagedRows:
    ones = np.ones(len(lens), np.int64)
    return PagedRows(ones, np.array(lens), np.array(tables), page_size, torch.device("cpu"), window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("window", [None, 700])
def test_a_row_attends_alone_as_among_others(dtype: torch.dtype, window: int | None) -> None:
    """Rows are long enough to be summed in several parts."""
    lens, page_size, names = [1, 1300, 513, 40], 16, {torch.float32: "fp32", torch.float16: "fp16"}
    kv_dtype = names.get(dtype, "bf16" if dtype is torch.bfloat16 else "int8")
    traits: dict[str, Trait] = {"head_dim": 64, "kv_heads": 2, "heads": 6, "kv_dtype": kv_dtype, "page_size": page_size}
    bound = chosen(reference.attention_decode, **traits, window=window or 0)
    columns = -(-max(lens) // page_size)
    pages = np.random.default_rng(0).permutation(columns * len(lens)).reshape(len(lens), columns).tolist()
    keys, values, scales = filled_pool(columns * len(lens) * page_size, dtype)
    q_BHD = randn(len(lens), 6, 64, seed=2)
    together_BHD = bound(q_BHD, keys, values, rows_of(pages, lens, page_size, window), 0.125, scales)
    expected = reference.attention_decode.reference(
        q_BHD, keys, values, rows_of(pages, lens, page_size, window), 0.125, scales
    )
    torch.testing.assert_close(together_BHD, expected, atol=1e-5, rtol=1e-5)
    for row in range(len(lens)):
        own = rows_of(pages[row : row + 1], lens[row : row + 1], page_size, window)
        alone_HD = bound(q_BHD[row : row + 1], keys, values, own, 0.125, scales)[0]
        assert torch.equal(alone_HD, together_BHD[row])
