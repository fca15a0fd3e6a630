"""Contract of device memory: what is allocated is accounted for, and too much is refused in good time."""

import pytest
import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import torch_dtype
from sglk.errors import CapacityError
from sglk.testing.contract.device_tests import DeviceTests

PIECE_BYTES = 64 * 2**20

SLACK_BYTES = 8 * 2**20
"""What an allocator may take or keep beside what it is asked for, and others meanwhile."""


class MemoryTests(DeviceTests):
    """`allocate`, `free`, `memory_info`, `peak_memory_bytes`."""

    def test_memory_is_of_the_asked_shape_and_dtype_on_the_device(self, backend: DeviceBackend) -> None:
        names = backend.capabilities.dtypes | backend.capabilities.kv_cache_dtypes
        for dtype in (*map(torch_dtype, sorted(names)), torch.int64, torch.uint8):
            tensor = backend.allocate((3, 5), dtype)
            assert (tuple(tensor.shape), tensor.dtype) == ((3, 5), dtype)
            assert tensor.device.type == backend.device.type
            assert tensor.is_contiguous()
            backend.free(tensor)

    def test_memory_information_adds_up(self, backend: DeviceBackend) -> None:
        memory = backend.memory_info()
        assert 0 < memory.free <= memory.total

    def test_what_is_allocated_is_not_free_and_what_is_freed_is(self, backend: DeviceBackend) -> None:
        before = backend.memory_info().free
        tensor = backend.allocate((PIECE_BYTES,), torch.uint8)
        backend.execute_runnable(tensor.zero_)
        backend.synchronize()
        if not backend.capabilities.host_memory:
            # Main memory belongs to everybody, so its figures prove nothing here.
            assert before - backend.memory_info().free == pytest.approx(PIECE_BYTES, abs=SLACK_BYTES)
        assert backend.peak_memory_bytes() >= PIECE_BYTES
        backend.free(tensor)
        backend.synchronize()
        if backend.capabilities.host_memory:
            held = tensor.untyped_storage().nbytes()
            assert held == 0, "free left the storage where it was"
        else:
            assert backend.memory_info().free == pytest.approx(before, abs=SLACK_BYTES)

    def test_memory_comes_back_though_views_of_it_are_held(self, backend: DeviceBackend) -> None:
        before = backend.memory_info().free
        views = []
        for _ in range(4):
            tensor = backend.allocate((PIECE_BYTES,), torch.uint8)
            views.append(tensor[:16])
            backend.free(tensor)
        if not backend.capabilities.host_memory:
            assert backend.memory_info().free == pytest.approx(before, abs=SLACK_BYTES)

    def test_more_than_there_is_is_refused_with_both_figures_and_harms_nothing(self, backend: DeviceBackend) -> None:
        wanted = backend.memory_info().total * 2
        with pytest.raises(CapacityError, match=str(wanted)):
            backend.allocate((wanted,), torch.uint8)
        backend.free(backend.allocate((1024,), torch.uint8))

    def test_the_peak_never_falls(self, backend: DeviceBackend) -> None:
        if type(backend).peak_memory_bytes is DeviceBackend.peak_memory_bytes:
            pytest.skip("the backend keeps no record of its peak")
        tensor = backend.allocate((PIECE_BYTES,), torch.uint8)
        backend.execute_runnable(tensor.zero_)
        peak = backend.peak_memory_bytes()
        backend.free(tensor)
        assert backend.peak_memory_bytes() >= min(peak, backend.memory_info().total)
