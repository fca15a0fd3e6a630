"""Memory of weights: zeros of their own, given back when nobody holds them."""

import gc
import mmap
from pathlib import Path

import pytest
import torch

from sglk.backends.cpu import CpuBackend
from sglk.backends.cpu_kernels import large_pages


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_each_tensor_has_zeros_of_its_own(dtype: torch.dtype) -> None:
    shapes = [(700, 1000), (3, 400_001), (5,), (1, 2**21 + 1)]
    tensors = [large_pages.zeros(shape, dtype) for shape in shapes]
    assert [(tuple(each.shape), each.dtype) for each in tensors] == [(shape, dtype) for shape in shapes]
    for number, tensor in enumerate(tensors, start=1):
        assert not tensor.any()
        assert tensor.is_contiguous()
        tensor.fill_(number)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors, start=1))


def test_what_is_larger_than_a_chunk_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "CHUNK_BYTES", 2**20)
    large, small = large_pages.zeros((5, 2**20), torch.int8), large_pages.zeros((2**19,), torch.int8)
    large.fill_(1)
    assert not small.any()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has none")
def test_the_last_tensor_gives_the_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_chunk", None)
    tensor = large_pages.zeros((2**20,), torch.int8)
    chunk = large_pages._chunk
    assert chunk is not None
    assert chunk() is not None
    del tensor
    gc.collect()
    assert chunk() is None


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has none")
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has none")
def test_a_cache_asks_for_large_pages_and_is_given_back() -> None:
    backend = CpuBackend()
    cache = backend.allocate_cache((3, large_pages.LARGE_PAGE // 4, 3), torch.int16)
    assert cache.is_contiguous()
    assert all("hg" in flags_at(each.data_ptr()) for each in cache)
    assert cache.fill_(3).sum(dtype=torch.int64) == 3 * cache.numel()
    backend.free(cache)
    assert cache.untyped_storage().nbytes() == 0


def flags_at(address: int) -> list[str]:
    """What the system keeps of the memory there."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first:
            start, end = (int(each, 16) for each in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return rest.split()
    raise AssertionError(f"{address:x} is in no map")
