"""What a token takes in the KV pool, and what the pool holds."""

from dataclasses import replace

import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.backends.dtypes import torch_dtype
from sglk.cache.kv import KVLayout, KVPool

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


@pytest.mark.parametrize("dtype", BYTES)
def test_a_token_takes_a_key_and_a_value_of_every_head_and_layer(dtype: str) -> None:
    assert KVLayout(3, 2, 64, torch_dtype(dtype)).bytes_per_token == 2 * 3 * 2 * 64 * BYTES[dtype]


def test_int8_also_takes_a_scale_for_each_of_them() -> None:
    assert KVLayout(3, 2, 64, torch.int8).bytes_per_token == 2 * 3 * 2 * (64 + 4)


@pytest.mark.parametrize("dtype", [*BYTES, "int8"])
def test_the_pool_holds_what_its_layout_says_and_gives_all_of_it_back(dtype: str) -> None:
    pool = KVPool(CpuBackend(num_threads=1), KVLayout(3, 2, 8, torch_dtype(dtype)), num_pages=5, page_size=4)
    scales = [part for pair in pool.scales if pair for part in (pair.keys_SK, pair.values_SK)]
    tensors = [*pool.keys, *pool.values, *scales]
    assert {tensor.shape for tensor in pool.keys} == {(20, 2, 8)}
    assert len(scales) == (6 if dtype == "int8" else 0)
    assert sum(tensor.nbytes for tensor in tensors) == pool.num_bytes
    pool.free()
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == 0


def test_a_backend_that_wants_head_major_pages_gets_them() -> None:
    backend = CpuBackend(num_threads=1)
    backend.capabilities = replace(backend.capabilities, head_major_pages=True)
    pool = KVPool(backend, KVLayout(1, 2, 8, torch.int8), num_pages=5, page_size=4)
    assert pool.keys[0].shape == pool.values[0].shape == (5, 2, 4, 8)
    assert pool.scales[0] is not None
    assert pool.scales[0].keys_SK.shape == (20, 2)
