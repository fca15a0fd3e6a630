"""What a pool of another dtype keeps of keys and values."""

from collections.abc import Callable

import pytest
import torch

from sglk.backends import reference
from sglk.backends.constraints import Trait
from sglk.backends.cpu_kernels.library import kernels
from sglk.backends.dtypes import torch_dtype
from sglk.backends.kv_values import KVScales, read_kv, write_kv
from tests.backends.own_kernels import chosen

SLOTS = torch.tensor([7, 0, 4])
OTHERS = [1, 2, 3, 5, 6, 8]

HALF_STEPS = {"fp32": 0.0, "fp16": 2**-11, "bf16": 2**-8, "fp8_e4m3": 2**-4, "fp8_e5m2": 2**-3}
"""Largest relative error of rounding to nearest: half a unit in the last place."""


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", HALF_STEPS)
def test_floats_are_rounded_to_nearest_and_other_slots_left_alone(dtype: str) -> None:
    x = randn(3, 5, 16)[:, :2]
    pool = torch.full((9, 2, 16), 5.0).to(torch_dtype(dtype))
    write_kv(x, pool, SLOTS, None)
    read = read_kv(pool, SLOTS, None, torch.float32)
    # Below the smallest normal number the step is absolute.
    assert ((read - x).abs() <= x.abs() * HALF_STEPS[dtype] + 2**-10 * bool(HALF_STEPS[dtype])).all()
    assert (pool.float()[OTHERS] == 5.0).all()


def test_int8_is_within_half_a_step_of_every_token_and_head() -> None:
    x = randn(3, 2, 16) * torch.tensor([1e-3, 1.0, 1e3]).view(3, 1, 1)
    x[1, 1] = 0
    pool, scales = torch.full((9, 2, 16), 5, dtype=torch.int8), torch.full((9, 2), 2.0)
    write_kv(x, pool, SLOTS, scales)
    read = read_kv(pool, SLOTS, scales, torch.float32)
    steps = x.abs().amax(-1, keepdim=True) / 127
    assert ((read - x).abs() <= 0.5001 * steps).all()
    assert (pool[OTHERS] == 5).all()
    assert (scales[OTHERS] == 2.0).all()


@pytest.mark.parametrize("width", [4, 40])
def test_the_smallest_numbers_keep_their_signs_in_int8(width: int) -> None:
    """Their scale is a number below the smallest normal one, so it is itself rounded, by up to half."""
    smallest = 2.0**-149
    x = torch.zeros(3, 1, width)
    x[:, 0, :3] = torch.tensor([[63.0, -63.0, 2.0], [190.0, -190.0, 5.0], [400.0, -320.0, 100.0]]) * smallest
    stores: dict[str, Callable[..., None]] = {"reference": reference.store_kv.reference}
    if not isinstance(kernels(), str):
        traits: dict[str, Trait] = {"head_dim": width, "kv_heads": 1, "heads": 1, "page_size": 1, "kv_dtype": "int8"}
        stores["own kernel"] = chosen(reference.store_kv, **traits)
    for name, store in stores.items():
        pools = [torch.zeros(9, 1, width, dtype=torch.int8) for _ in range(2)]
        scales = KVScales(torch.zeros(9, 1), torch.zeros(9, 1))
        store(x, x, *pools, SLOTS, scales)
        for pool, kept in zip(pools, (scales.keys_SK, scales.values_SK), strict=True):
            read = read_kv(pool, SLOTS, kept, torch.float32)
            assert (read.sign() * x.sign() >= 0).all(), name
            assert ((read - x).abs() <= 64 * smallest).all(), name


def test_a_token_leaves_the_same_whatever_is_stored_with_it() -> None:
    x = randn(3, 2, 16) * torch.tensor([1.0, 1e3, 1e-3]).view(3, 1, 1)
    together, alone = ((torch.zeros(9, 2, 16, dtype=torch.int8), torch.zeros(9, 2)) for _ in range(2))
    write_kv(x, together[0], SLOTS, together[1])
    write_kv(x[:1], alone[0], SLOTS[:1], alone[1])
    assert torch.equal(together[0][7], alone[0][7])
    assert torch.equal(together[1][7], alone[1][7])


@pytest.mark.parametrize(("dtype", "largest"), [("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_what_is_too_large_saturates_and_nan_stays(dtype: str, largest: float) -> None:
    pool = torch.zeros(9, 1, 3).to(torch_dtype(dtype))
    write_kv(torch.tensor([[[1e6, -1e6, torch.nan]]]), pool, SLOTS[:1], None)
    read = read_kv(pool, SLOTS[:1], None, torch.float32)[0, 0]
    assert read[:2].tolist() == [largest, -largest]
    assert read[2].isnan()


def test_nan_is_not_hidden_by_int8() -> None:
    pool, scales = torch.zeros(9, 2, 4, dtype=torch.int8), torch.zeros(9, 2)
    x = randn(1, 2, 4)
    x[0, 1, 2] = torch.nan
    write_kv(x, pool, SLOTS[:1], scales)
    read = read_kv(pool, SLOTS[:1], scales, torch.float32)[0]
    assert read[0].isfinite().all()
    assert read[1].isnan().all()


@pytest.mark.parametrize("dtype", [*HALF_STEPS, "int8"])
def test_head_major_pages_keep_the_same_in_other_places(dtype: str) -> None:
    pages, heads, page_size, width = 3, 2, 3, 16
    slots, head_major = torch.zeros(9, heads, width), torch.zeros(pages, heads, page_size, width)
    slots, head_major = slots.to(torch_dtype(dtype)), head_major.to(torch_dtype(dtype))
    scales = [torch.zeros(9, heads) if dtype == "int8" else None for _ in range(2)]
    x = randn(3, heads, width)
    write_kv(x.clone(), slots, SLOTS, scales[0])
    write_kv(x.clone(), head_major, SLOTS, scales[1])
    assert torch.equal(head_major.float().transpose(1, 2).reshape(9, heads, width), slots.float())
    read = [read_kv(pool, SLOTS, scale, torch.float32) for pool, scale in zip((slots, head_major), scales, strict=True)]
    assert torch.equal(*read)
