import logging
import re

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.engine.capacity import GIB, HOST_SHARE, DeviceRoom, KVNeed, kv_capacity_tokens
from sglk.errors import CapacityError

CARD = DeviceRoom(total=10 * GIB, free=8 * GIB, host_memory=False)
NEED = KVNeed(weights_bytes=2 * GIB, bytes_per_token=GIB // 1024, context_length=1024)


def runtime(**values: float) -> RuntimeConfig:
    return RuntimeConfig(**values)  # type: ignore[arg-type]


def test_the_fraction_covers_weights_and_pool() -> None:
    assert kv_capacity_tokens(NEED, CARD, runtime(mem_fraction_static=0.8)) == 6 * 1024


def test_the_configured_memory_replaces_the_devices() -> None:
    assert kv_capacity_tokens(NEED, CARD, runtime(mem_fraction_static=0.5, device_memory_gib=8.0)) == 2 * 1024


def test_a_pool_larger_than_what_is_free_is_refused_with_the_fraction_that_fits() -> None:
    busy = DeviceRoom(total=10 * GIB, free=4 * GIB, host_memory=False)
    with pytest.raises(CapacityError, match=rf"only {4 * GIB} of the device's {10 * GIB} are free; lower it to 0.6 or"):
        kv_capacity_tokens(NEED, busy, runtime(mem_fraction_static=0.8))
    assert kv_capacity_tokens(NEED, busy, runtime(mem_fraction_static=0.6)) == 4 * 1024
    with pytest.raises(CapacityError, match=r"lower runtime.device_memory_gib=100 to the memory of the device"):
        kv_capacity_tokens(NEED, CARD, runtime(device_memory_gib=100.0))


def test_main_memory_is_shared_and_never_more_than_the_window_can_fill() -> None:
    machine = DeviceRoom(total=20 * GIB, free=18 * GIB, host_memory=True)
    share = int(20 * GIB * HOST_SHARE * 0.8) - NEED.weights_bytes
    assert kv_capacity_tokens(NEED, machine, runtime()) == share // NEED.bytes_per_token
    assert kv_capacity_tokens(NEED, machine, runtime(max_running_requests=2)) == 2 * 1024
    assert kv_capacity_tokens(NEED, machine, runtime(max_running_requests=2, page_size=1000)) == 2 * 2000
    busy = DeviceRoom(total=20 * GIB, free=GIB, host_memory=True)
    assert kv_capacity_tokens(NEED, busy, runtime()) == 1024


def test_a_full_machine_is_refused() -> None:
    full = DeviceRoom(total=20 * GIB, free=1000, host_memory=True)
    with pytest.raises(CapacityError, match="only 1000 bytes of main memory are free"):
        kv_capacity_tokens(NEED, full, runtime())


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.201])
def test_too_small_a_fraction_names_all_numbers_and_the_smallest_that_works(fraction: float) -> None:
    with pytest.raises(CapacityError) as caught:
        kv_capacity_tokens(NEED, CARD, runtime(mem_fraction_static=fraction))
    message = str(caught.value)
    for number in (f"{fraction}", str(10 * GIB), str(int(fraction * 10 * GIB)), str(2 * GIB), f"token {GIB // 1024},"):
        assert number in message
    assert "lower" not in message
    advised = re.search(r"raise it to ([0-9.]+) or more", message)
    assert advised is not None
    smallest = float(advised.group(1))
    assert kv_capacity_tokens(NEED, CARD, runtime(mem_fraction_static=smallest)) >= NEED.context_length
    assert smallest == pytest.approx((NEED.weights_bytes + GIB) / CARD.total, abs=0.001)


def test_the_advice_leaves_whole_pages() -> None:
    settings = runtime(mem_fraction_static=0.201, page_size=1000)
    with pytest.raises(CapacityError) as caught:
        kv_capacity_tokens(NEED, CARD, settings)
    advised = re.search(r"raise it to ([0-9.]+) or more", str(caught.value))
    assert advised is not None
    settings.mem_fraction_static = float(advised.group(1))
    assert kv_capacity_tokens(NEED, CARD, settings) // 1000 * 1000 >= NEED.context_length


def test_a_device_too_small_for_any_fraction_says_so_and_advises_what_helps() -> None:
    small = DeviceRoom(total=2 * GIB, free=GIB, host_memory=False)
    with pytest.raises(CapacityError, match="no fraction leaves one page beside the weights; use a larger device"):
        kv_capacity_tokens(NEED, small, runtime())
    tight = DeviceRoom(total=int(2.5 * GIB), free=GIB // 2, host_memory=False, splittable=True)
    with pytest.raises(
        CapacityError, match=r"no fraction is enough .*context_length, or use more devices \(runtime.tp"
    ):
        kv_capacity_tokens(NEED, tight, runtime(mem_fraction_static=0.5))


def test_less_than_one_full_request_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert kv_capacity_tokens(NEED, CARD, runtime(mem_fraction_static=0.25)) == 512
    assert "less than one request of full context (1024)" in caplog.text


def test_a_requested_size_is_taken_or_refused() -> None:
    assert kv_capacity_tokens(NEED, CARD, runtime(max_total_tokens=64)) == 64
    with pytest.raises(CapacityError, match=r"max_total_tokens=9000.*lower it to 8192 or less"):
        kv_capacity_tokens(NEED, CARD, runtime(max_total_tokens=9000))
    with pytest.raises(CapacityError, match=r"less than one page .*; give at least 16"):
        kv_capacity_tokens(NEED, CARD, runtime(max_total_tokens=8))


@pytest.mark.parametrize("host_memory", [False, True])
def test_a_page_larger_than_the_context_is_the_page_s_fault(host_memory: bool) -> None:
    room = DeviceRoom(total=10 * GIB, free=8 * GIB, host_memory=host_memory)
    settings = runtime(page_size=10**9)
    with pytest.raises(CapacityError, match=r"lower runtime\.page_size to 1024 or less$") as caught:
        kv_capacity_tokens(NEED, room, settings)
    assert "raise" not in str(caught.value)
    settings.page_size = 1024
    assert kv_capacity_tokens(NEED, room, settings) >= NEED.context_length


def test_a_page_that_main_memory_has_no_room_for_says_so() -> None:
    busy = DeviceRoom(total=20 * GIB, free=GIB // 2, host_memory=True)
    with pytest.raises(CapacityError, match=r"one page of 1024 KV .* or lower runtime\.page_size$"):
        kv_capacity_tokens(NEED, busy, runtime(page_size=1024))
    assert kv_capacity_tokens(NEED, busy, runtime(page_size=512)) == 512


def test_a_requested_pool_smaller_than_a_page_gets_advice_that_fits() -> None:
    with pytest.raises(CapacityError, match=r"than one page .*; set runtime\.page_size to 64 or less"):
        kv_capacity_tokens(NEED, CARD, runtime(max_total_tokens=64, page_size=10**9))
