"""Contract of the capability table: what is declared exists, and works."""

from datetime import timedelta
from threading import Thread

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from sglk.backends import reference
from sglk.backends.base import API_VERSION, DeviceBackend
from sglk.backends.capability_table import table_flaw
from sglk.backends.dtypes import dtype_name, torch_dtype
from sglk.backends.kv_values import read_both
from sglk.backends.ops import Fallback
from sglk.cache.kv import KVLayout, KVPool
from sglk.errors import BackendError, ConfigError, SglkError
from sglk.testing.contract.copy_tests import back_from
from sglk.testing.contract.device_tests import DeviceTests

KV_ERRORS = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8, "int8": 0.5 / 127, "fp8_e4m3": 2**-4, "fp8_e5m2": 2**-3}
"""Largest error of a stored value, in units of the largest of its head: half a step of the dtype."""

SUM_TIMEOUT = timedelta(seconds=60)


class CapabilityTests(DeviceTests):
    """`api_version`, `capabilities`, options, `device_info`, `process_group`."""

    def test_it_is_written_for_this_version_of_the_contract(self, backend: DeviceBackend) -> None:
        assert backend.api_version == API_VERSION
        assert backend.name

    def test_the_table_can_be_meant(self, backend: DeviceBackend) -> None:
        """Its names are known, and what `auto` means is among them."""
        assert table_flaw(backend.capabilities) is None

    def test_an_unknown_option_is_refused_by_name(self, backend: DeviceBackend) -> None:
        with pytest.raises(ConfigError, match="no_such_option"):
            self.make_backend(no_such_option=1)

    def test_an_unknown_fallback_policy_is_refused(self, backend: DeviceBackend) -> None:
        policy: Fallback = "perhaps"  # type: ignore[assignment]
        with pytest.raises(ConfigError, match="perhaps"):
            self.make_backend(fallback=policy)

    def test_a_device_beyond_the_last_is_refused(self, backend: DeviceBackend) -> None:
        count = backend.num_devices(1)
        if count is None or backend.capabilities.host_memory or backend.simulated:
            pytest.skip("the backend does not count its devices")
        with pytest.raises(SglkError):
            self.make_backend(index=count)

    def test_the_device_has_a_name(self, backend: DeviceBackend) -> None:
        info = backend.device_info()
        assert info.name
        assert all(isinstance(value, str) for value in info.details.values())

    def test_every_kv_dtype_keeps_values_within_its_error(self, backend: DeviceBackend) -> None:
        for compute in sorted(backend.capabilities.dtypes):
            for name in sorted(backend.capabilities.kv_cache_dtypes):
                for size in backend.capabilities.page_sizes or (16,):
                    error = stored_error(backend, compute, name, size)
                    bound = KV_ERRORS[name] + KV_ERRORS[compute]
                    assert error <= bound or backend.simulated, (compute, name, size)

    def test_devices_add_up_or_say_that_they_cannot(self, backend: DeviceBackend) -> None:
        if backend.capabilities.collectives is None:
            with pytest.raises(BackendError):
                backend.process_group(HashStore(), 0, 2, SUM_TIMEOUT)
            return
        count = backend.num_devices(2)
        if count is not None and count < 2:
            pytest.skip("there is one device only")
        for summed, gathered in self._exchanged():
            assert summed.equal(torch.full((3, 5), 3.0)) or backend.simulated
            assert gathered.equal(torch.tensor((1.0, 2.0)).repeat_interleave(15).view(2, 3, 5)) or backend.simulated

    def _exchanged(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return what each of two devices has after they added, and gathered, 1 and 2."""
        store = HashStore()
        results: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def join(rank: int) -> None:
            device = self.make_backend(index=rank)
            group = device.process_group(store, rank, 2, SUM_TIMEOUT)
            x, own, *parts = (device.allocate((3, 5), torch.float32) for _ in range(4))
            for tensor in (x, own):
                device.copy(torch.full((3, 5), float(rank + 1)), tensor)
            device.execute_runnable(lambda: group.allreduce([x]).wait())
            device.execute_runnable(lambda: group.allgather([parts], [own]).wait())
            results[rank] = back_from(device, x), torch.stack([back_from(device, part) for part in parts])

        threads = [Thread(target=join, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 2, "a rank failed"
        return [results[0], results[1]]


def stored_error(backend: DeviceBackend, compute: str, name: str, page_size: int) -> float:
    """Return the largest error of values that went through the pool, relative to the largest of their head."""
    dtype, heads, width = torch_dtype(compute), 2, 64
    pool = KVPool(backend, KVLayout(1, heads, width, torch_dtype(name)), 4, page_size)
    store = backend.ops.select(
        reference.store_kv, head_dim=width, kv_heads=heads, kv_dtype=name, dtype=dtype_name(dtype), page_size=page_size
    )
    values = torch.randn(2, 3 * page_size, heads, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    k_TKD, v_TKD = (backend.allocate(tuple(half.shape), dtype) for half in values)
    backend.copy(values[0], k_TKD)
    backend.copy(values[1], v_TKD)
    slots_T = backend.allocate((3 * page_size,), torch.int64)
    backend.copy(torch.randperm(4 * page_size)[: 3 * page_size], slots_T)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        store(k_TKD, v_TKD, pool.keys[0], pool.values[0], slots_T, pool.scales[0])
        return read_both(pool.keys[0], pool.values[0], slots_T, pool.scales[0], torch.float32)

    read = torch.stack([back_from(backend, half) for half in backend.execute_runnable(run)])
    pool.free()
    sizes = values.float().abs().amax(-1, keepdim=True)
    return float(((read - values.float()).abs() / sizes).max())
