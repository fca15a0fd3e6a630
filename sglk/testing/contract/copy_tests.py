"""Contract of copies: between host and device, of parts, and from one dtype to another."""

import pytest
import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import torch_dtype
from sglk.testing.contract.device_tests import DeviceTests


class CopyTests(DeviceTests):
    """`copy`."""

    def test_what_goes_to_the_device_comes_back(self, backend: DeviceBackend) -> None:
        values = torch.arange(-30, 30).view(6, 10)
        for dtype in (*map(torch_dtype, sorted(backend.capabilities.dtypes)), torch.int64, torch.int8):
            there = backend.allocate((6, 10), dtype)
            backend.copy(values.to(dtype), there)
            assert back_from(backend, there).equal(values.to(dtype)) or backend.simulated
            backend.free(there)

    def test_a_copy_converts_where_the_dtypes_differ(self, backend: DeviceBackend) -> None:
        values = torch.linspace(-3, 3, 60).view(6, 10)
        for name in sorted(backend.capabilities.dtypes):
            there = backend.allocate((6, 10), torch_dtype(name))
            backend.copy(values, there)
            assert back_from(backend, there).equal(values.to(torch_dtype(name))) or backend.simulated
            backend.free(there)

    def test_rows_of_a_larger_tensor_can_be_filled_one_part_at_a_time(self, backend: DeviceBackend) -> None:
        values = torch.randn(6, 10)
        whole = backend.allocate((6, 10), torch.float32)
        backend.copy(values[:4].t().contiguous().t(), whole[:4])
        backend.copy(values[4:], whole[4:])
        assert back_from(backend, whole).equal(values) or backend.simulated
        backend.free(whole)

    def test_copies_on_the_device_are_in_order_with_its_work(self, backend: DeviceBackend) -> None:
        first, second = (backend.allocate((1000,), torch.float32) for _ in range(2))
        for value in range(5):
            backend.execute_runnable(lambda value=value: first.fill_(value))  # type: ignore[misc]
            backend.copy(first, second)
        assert back_from(backend, second).equal(torch.full((1000,), 4.0)) or backend.simulated

    def test_different_shapes_are_refused(self, backend: DeviceBackend) -> None:
        there = backend.allocate((4,), torch.float32)
        with pytest.raises(RuntimeError):
            backend.copy(torch.zeros(5), there)


def back_from(backend: DeviceBackend, tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor of the device holds, on the host."""
    here = torch.empty(tensor.shape, dtype=tensor.dtype)
    backend.copy(tensor, here)
    backend.synchronize()
    return here
