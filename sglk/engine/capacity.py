"""How many KV tokens a device has room for, beside the weights."""

import logging
import math
from dataclasses import dataclass

from sglk.config.schema import RuntimeConfig
from sglk.errors import CapacityError

logger = logging.getLogger(__name__)

GIB = 2**30

HOST_SHARE = 0.5
"""Part of main memory that a device without memory of its own plans with; the rest belongs to everything else."""


@dataclass(frozen=True)
class KVNeed:
    """What is to be placed, in bytes and tokens."""

    weights_bytes: int
    bytes_per_token: int
    context_length: int


@dataclass(frozen=True)
class DeviceRoom:
    """Where it is to be placed, in bytes."""

    total: int
    free: int
    """Now free for a pool; the weights are already in place."""
    host_memory: bool
    """Main memory, shared with everything else on the machine."""
    splittable: bool = False
    """Whether more devices can share weights and pool."""


def kv_capacity_tokens(need: KVNeed, room: DeviceRoom, runtime: RuntimeConfig) -> int:
    """Return the size of the KV pool in tokens, and warn where one request of full context is larger.

    Raises CapacityError as `fitting_tokens` does.
    """
    tokens = fitting_tokens(need, room, runtime)
    if runtime.max_total_tokens is None and tokens < need.context_length:
        logger.warning(
            "the KV pool holds %d tokens, less than one request of full context (%d); "
            "raise runtime.mem_fraction_static or lower runtime.context_length",
            tokens,
            need.context_length,
        )
    return tokens


def fitting_tokens(need: KVNeed, room: DeviceRoom, runtime: RuntimeConfig) -> int:
    """Return the KV tokens that fit.

    `max_total_tokens` as given, if it fits; else what `mem_fraction_static` of the device leaves after the weights.
    In main memory the pool is moreover kept to what is free and to what the window can fill, `max_running_requests`
    requests of full context: more would only keep old prefixes while other programs starve.
    Raises CapacityError when the weights do not fit, not one page is left, or the pool is larger than what is free.
    """
    device = planned_bytes(room, runtime)
    if runtime.max_total_tokens is not None:
        left = min(device - need.weights_bytes, room.free)
        return _requested_tokens(need, left, runtime.max_total_tokens, runtime.page_size)
    tokens = int(runtime.mem_fraction_static * device - need.weights_bytes) // need.bytes_per_token
    if tokens < runtime.page_size:
        larger = "more devices (runtime.tp_size) or a larger one" if room.splittable else "a larger device"
        raise CapacityError(_too_small(need, device, runtime, larger))
    if not room.host_memory and tokens * need.bytes_per_token > room.free:
        raise CapacityError(_not_free(need, room, runtime, tokens * need.bytes_per_token))
    if room.host_memory:
        pages = -(-need.context_length // runtime.page_size)
        window = runtime.max_running_requests * pages * runtime.page_size
        tokens = min(tokens, room.free // need.bytes_per_token, window)
    if tokens < runtime.page_size:
        raise CapacityError(
            f"only {room.free} bytes of main memory are free, too few for one page of {runtime.page_size} KV tokens "
            f"({runtime.page_size * need.bytes_per_token} bytes); end other programs or lower runtime.page_size"
        )
    return tokens


def planned_bytes(room: DeviceRoom, runtime: RuntimeConfig) -> int:
    """Return the bytes that `mem_fraction_static` is a share of."""
    if runtime.device_memory_gib is not None:
        return int(runtime.device_memory_gib * GIB)
    return int(room.total * HOST_SHARE) if room.host_memory else room.total


def _requested_tokens(need: KVNeed, left: int, tokens: int, page_size: int) -> int:
    most = left // need.bytes_per_token
    if tokens < page_size:
        way_out = f"give at least {page_size}" if page_size <= most else f"set runtime.page_size to {tokens} or less"
        raise CapacityError(
            f"runtime.max_total_tokens={tokens} is less than one page of runtime.page_size={page_size}; {way_out}"
        )
    if tokens > most:
        raise CapacityError(
            f"runtime.max_total_tokens={tokens} needs {tokens * need.bytes_per_token} bytes, and beside the weights' "
            f"{need.weights_bytes} only {max(left, 0)} are left; lower it to {max(most, 0)} or less"
        )
    return tokens


def _not_free(need: KVNeed, room: DeviceRoom, runtime: RuntimeConfig, pool: int) -> str:
    device, fraction = planned_bytes(room, runtime), runtime.mem_fraction_static
    given = (
        f"runtime.mem_fraction_static={fraction:g} of {device} bytes leaves {pool} for KV beside the weights' "
        f"{need.weights_bytes}, and only {room.free} of the device's {room.total} are free"
    )
    if device > room.total:
        return f"{given}; lower runtime.device_memory_gib={runtime.device_memory_gib:g} to the memory of the device"
    largest = math.floor((need.weights_bytes + room.free) / device * 1000) / 1000
    return f"{given}; lower it to {largest:g} or less, or end what else is in the device's memory"


def _too_small(need: KVNeed, device: int, runtime: RuntimeConfig, larger: str) -> str:
    fraction = runtime.mem_fraction_static
    given = (
        f"runtime.mem_fraction_static={fraction:g} of {device} bytes is {int(fraction * device)} bytes, "
        f"the weights take {need.weights_bytes}, each KV token {need.bytes_per_token}, "
        f"a page of {runtime.page_size} of them {runtime.page_size * need.bytes_per_token}"
    )
    tokens = int(fraction * device - need.weights_bytes) // need.bytes_per_token
    if tokens > 0 and runtime.page_size > need.context_length:
        # A pool of one page would fit no better: what is too large is the page, not the pool.
        largest = min(tokens, need.context_length)
        return (
            f"{given}; one page is larger than a request of full context ({need.context_length} tokens): lower "
            f"runtime.page_size to {largest} or less"
        )
    pages = -(-need.context_length // runtime.page_size)
    full = need.weights_bytes + pages * runtime.page_size * need.bytes_per_token
    smallest = math.ceil(full / device * 1000) / 1000
    if smallest <= 1:
        return f"{given}; raise it to {smallest:g} or more, which leaves one request of {need.context_length} tokens"
    if need.weights_bytes + runtime.page_size * need.bytes_per_token > device:
        return f"{given}; no fraction leaves one page beside the weights; use {larger}"
    return (
        f"{given}; no fraction is enough for one request of {need.context_length} tokens ({full} bytes with the "
        f"weights); raise runtime.mem_fraction_static and lower runtime.context_length, or use {larger}"
    )
