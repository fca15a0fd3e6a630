"""The smallest changes that make a model fit its devices: all combinations are tried, what is not needed is left out.

Changes in the order of what they cost: a higher memory fraction is free as long as a step keeps its room, a shorter
context refuses long requests, a smaller KV dtype and fewer bits of weights cost accuracy, more devices cost money.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from sglk.backends.schemes import ON_LOAD, LinearScheme
from sglk.config.quantization import schemes_of
from sglk.config.schema import ChipConfig, RuntimeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.engine.capacity import GIB
from sglk.planner.dtypes import BYTES, compute_dtype, kv_dtype
from sglk.planner.footprint import Footprint, footprint
from sglk.planner.kv import takes
from sglk.planner.model import PlannedModel
from sglk.planner.room import Room
from sglk.planner.weights import schemes_by_size

SHORTEST_CONTEXT = 1024
"""A shorter context than this, and than an eighth of what is wanted, is no way out."""

_STEP = 0.01
"""Fractions are advised in hundredths."""

_BITS = {"w8a8": 8, "w8a16": 8, "fp8": 8, "w4a16": 4}

_MOST_DEVICES = 64


@dataclass(frozen=True)
class Wanted:
    """What has to have room at the same time."""

    context_length: int
    requests: int


@dataclass(frozen=True)
class Subject:
    """A model on a kind of device, and the bounds of what may be changed."""

    model: PlannedModel
    chip: ChipConfig
    room: Room
    runtime: RuntimeConfig
    fraction_left: float = 1.0
    """What other replicas on the same devices leave of their memory."""

    def footprint(self, runtime: RuntimeConfig) -> Footprint:
        """Return how the devices are filled with other runtime parameters."""
        return footprint(self.model, self.chip, self.room, runtime)

    def reserve(self, found: Footprint) -> int:
        """Return the bytes of a device that are left to everything beside weights and pools."""
        if self.room.host_memory:
            return self.room.total // found.tp_size - found.taken
        return int(found.planned * self.fraction_left) - found.taken

    def tp_sizes(self) -> list[int]:
        """Return the numbers of devices that the model can be split over."""
        return [size for size in self.model.tp_sizes() if size <= _MOST_DEVICES]

    def kv_dtypes(self) -> list[str]:
        """Return the dtypes of known size that the chip and the model can have a pool in."""
        return [name for name in self.chip.kv_cache_dtypes if name in BYTES and takes(self.model.spec, name)]

    @property
    def scheme(self) -> LinearScheme | None:
        """How the linear layers are quantised now."""
        return self.model.scheme(self.runtime.quantization)


@dataclass(frozen=True)
class Way:
    """Changes that together make room."""

    changes: dict[str, str]
    """Key to new value, as typed."""
    why: list[str]
    cost: tuple[float, ...]
    """Devices, bits of linear layers and of all other weights, bytes of KV numbers, tokens of context, fraction, sizes
    that are no longer stated: the most expensive first."""
    result: Footprint

    def is_part_of(self, other: "Way") -> bool:
        """Return whether `other` changes everything that this one changes, at least as far."""
        return self is not other and all(mine <= theirs for mine, theirs in zip(self.cost, other.cost, strict=True))


def fits(found: Footprint, wanted: Wanted) -> bool:
    """Return whether the pool holds what is wanted."""
    return found.requests(wanted.context_length) >= wanted.requests


def ways_to_fit(subject: Subject, wanted: Wanted) -> list[Way]:
    """Return all smallest sets of changes, the cheapest first; none where the model cannot be made to fit."""
    found = sorted(_all_ways(subject, wanted), key=lambda way: way.cost)
    smallest: list[Way] = []
    for way in found:
        if not any(other.is_part_of(way) for other in smallest):
            smallest = [other for other in smallest if not way.is_part_of(other)] + [way]
    return smallest


def most_fraction(subject: Subject, found: Footprint) -> float:
    """Return the largest `mem_fraction_static` that leaves other replicas and a step their room, in hundredths."""
    needed = 0.0 if subject.room.host_memory else found.reserve_needed / max(found.planned, 1)
    return math.floor((subject.fraction_left - needed) / _STEP + 1e-9) * _STEP


def undeclared(subject: Subject, wanted: Wanted) -> list[str]:
    """Return the schemes that would make the model fit these devices if the chip had them."""
    if subject.model.checkpoint is not None:
        return []
    found = []
    for scheme in schemes_by_size(frozenset(ON_LOAD) - schemes_of(subject.chip.quantization)):
        runtime = replace(subject.runtime, quantization=scheme)
        result = subject.footprint(runtime)
        if fits(result, wanted) and _bits(scheme, result.dtype) < _bits(_scheme(subject), result.dtype):
            found.append(scheme)
    return found


def roomiest_pool(subject: Subject) -> Footprint:
    """Return the largest pool of all choices, with the highest fraction that leaves a step its room.

    Where no choice leaves one it has no tokens, and the smallest weights.
    """
    found = []
    for runtime in _choices(subject):
        raised = most_fraction(subject, subject.footprint(runtime))
        fraction = max(raised, runtime.mem_fraction_static)
        found.append(subject.footprint(replace(runtime, mem_fraction_static=fraction)))
    return max(found, key=lambda each: (each.kv_tokens, -each.weights.total))


def _all_ways(subject: Subject, wanted: Wanted) -> Iterator[Way]:
    for runtime in _choices(subject):
        yield from _with_memory(subject, wanted, runtime)


def _choices(subject: Subject) -> Iterator[RuntimeConfig]:
    """Yield all combinations of devices, dtypes and stated sizes."""
    for (dtype, scheme), kv, (tokens, memory_gib) in product(
        _precisions(subject), _kv_dtypes(subject), _stated_sizes(subject)
    ):
        runtime = replace(
            subject.runtime,
            dtype=dtype,
            quantization=scheme,
            kv_cache_dtype=kv,
            max_total_tokens=tokens,
            device_memory_gib=memory_gib,
        )
        for size in _sizes(subject, subject.model.scheme(scheme)):
            yield replace(runtime, tp_size=size)


def _stated_sizes(subject: Subject) -> Iterator[tuple[int | None, float | None]]:
    """Yield the size of the pool and the memory as they are stated, and without what may be in the way."""
    tokens, memory_gib = subject.runtime.max_total_tokens, subject.runtime.device_memory_gib
    exceeds = memory_gib is not None and memory_gib * GIB > subject.room.total and not subject.room.host_memory
    yield from product(dict.fromkeys((tokens, None)), (memory_gib, None) if exceeds else (memory_gib,))


def _with_memory(subject: Subject, wanted: Wanted, runtime: RuntimeConfig) -> Iterator[Way]:
    """Yield the ways with these devices and dtypes: as they are, with a higher fraction, with a shorter context."""
    found = subject.footprint(runtime)
    if _stated_pool_takes_the_room_of_a_step(subject, found):
        return
    if fits(found, wanted):
        yield _way(subject, wanted, runtime, wanted.context_length, found)
        return
    shorter = _shorter(found, wanted)
    if shorter:
        yield _way(subject, wanted, runtime, shorter, found)
    raised = _raised(subject, wanted, runtime, found)
    if raised is None or runtime.max_total_tokens is not None:
        return
    found = subject.footprint(raised)
    if fits(found, wanted):
        yield _way(subject, wanted, raised, wanted.context_length, found)
    elif longer := _shorter(found, wanted):
        yield _way(subject, wanted, raised, longer, found)


def _stated_pool_takes_the_room_of_a_step(subject: Subject, found: Footprint) -> bool:
    if subject.room.host_memory or found.taken <= found.static:
        return False
    return subject.reserve(found) < found.reserve_needed


def _raised(subject: Subject, wanted: Wanted, runtime: RuntimeConfig, found: Footprint) -> RuntimeConfig | None:
    """Return a higher fraction: the smallest that is enough, else the largest that leaves a step its room."""
    pages = -(-wanted.context_length // runtime.page_size) * wanted.requests
    static = found.weights.total + pages * runtime.page_size * found.kv_bytes_per_token
    enough = math.ceil(static / max(found.planned, 1) / _STEP - 1e-9) * _STEP
    fraction = round(min(enough, most_fraction(subject, found)), 2)
    return replace(runtime, mem_fraction_static=fraction) if fraction > runtime.mem_fraction_static else None


def _shorter(found: Footprint, wanted: Wanted) -> int:
    """Return the context length that there is room for, 0 where it is too short to be of use."""
    longest = min(found.longest(wanted.requests), wanted.context_length)
    return longest if longest >= min(max(SHORTEST_CONTEXT, wanted.context_length // 8), wanted.context_length) else 0


def _way(subject: Subject, wanted: Wanted, runtime: RuntimeConfig, context_length: int, found: Footprint) -> Way:
    before = subject.runtime
    changes: dict[str, str] = {}
    why: list[str] = []
    if ranks_of(runtime) != ranks_of(before):
        changes["runtime.tp_size"] = str(found.tp_size)
        why.append(f"{found.tp_size} devices share the weights, {_gib(found.weights.total)} each")
    if runtime.dtype != before.dtype:
        changes["runtime.dtype"] = runtime.dtype
        why.append(f"two bytes a number: weights of {_gib(found.weights.total)}")
    if runtime.quantization != before.quantization:
        assert runtime.quantization is not None
        changes["runtime.quantization"] = runtime.quantization
        why.append(f"linear layers in {_BITS[runtime.quantization]} bits: weights of {_gib(found.weights.total)}")
    if runtime.kv_cache_dtype != before.kv_cache_dtype:
        changes["runtime.kv_cache_dtype"] = runtime.kv_cache_dtype
        why.append(f"a token takes {found.kv_bytes_per_token} bytes")
    if context_length != wanted.context_length:
        changes["runtime.context_length"] = str(context_length)
        why.append(f"{found.kv_tokens} tokens of KV have room")
    if runtime.mem_fraction_static != before.mem_fraction_static:
        changes["runtime.mem_fraction_static"] = f"{runtime.mem_fraction_static:g}"
        why.append(f"{_gib(found.static)} for weights and KV leaves {_gib(subject.reserve(found))} to everything else")
    if runtime.device_memory_gib != before.device_memory_gib:
        changes["runtime.device_memory_gib"] = "null"
        why.append(f"the device has {_gib(subject.room.total)}")
    if runtime.max_total_tokens != before.max_total_tokens:
        changes["runtime.max_total_tokens"] = "null"
        why.append("the pool takes what the fraction leaves")
    return Way(changes, why, _cost(subject, wanted, runtime, context_length, found), found)


def _cost(
    subject: Subject, wanted: Wanted, runtime: RuntimeConfig, context_length: int, found: Footprint
) -> tuple[float, ...]:
    before = compute_dtype(subject.runtime, subject.chip)
    kv_before = BYTES[kv_dtype(subject.runtime, subject.chip)]
    sizes = "max_total_tokens", "device_memory_gib"
    return (
        found.tp_size,
        _bits(_scheme(subject), before) - _bits(found.quantization, found.dtype),
        _bits(None, before) - _bits(None, found.dtype),
        kv_before - BYTES[found.kv_dtype],
        wanted.context_length - context_length,
        runtime.mem_fraction_static - subject.runtime.mem_fraction_static,
        sum(getattr(runtime, name) != getattr(subject.runtime, name) for name in sizes),
    )


def _sizes(subject: Subject, scheme: LinearScheme | None) -> list[int]:
    now = ranks_of(subject.runtime)
    # Main memory is one: more parts of a model in it save nothing.
    return [now] if subject.room.host_memory else [size for size in subject.tp_sizes() if size >= now]


def _precisions(subject: Subject) -> list[tuple[str, str | None]]:
    """Return compute dtypes with schemes: those of now, two bytes a number, fewer bits of linear layers, or both."""
    runtime, chip = subject.runtime, subject.chip
    dtypes, schemes = [runtime.dtype], [runtime.quantization]
    if compute_dtype(runtime, chip) == "fp32":
        dtypes += [name for name in chip.dtypes if BYTES.get(name) == 2][:1]
    if subject.model.checkpoint is None:
        schemes += _schemes(subject)
    return list(product(dtypes, schemes))


def _schemes(subject: Subject) -> list[str]:
    """Return the chip's schemes of fewer bits than the weights have now, one of each number of bits."""
    dtype = compute_dtype(subject.runtime, subject.chip)
    bits = _bits(_scheme(subject), dtype)
    declared = schemes_by_size(schemes_of(subject.chip.quantization))
    smaller = [scheme for scheme in declared if _bits(scheme, dtype) < bits]
    one_each = {_BITS[scheme]: scheme for scheme in reversed(smaller)}
    return [scheme for scheme in smaller if scheme in one_each.values()]


def _kv_dtypes(subject: Subject) -> list[str]:
    now = subject.runtime.kv_cache_dtype
    size = BYTES[kv_dtype(subject.runtime, subject.chip)]
    smaller = [name for name in subject.kv_dtypes() if BYTES[name] < size]
    one_each = {BYTES[name]: name for name in reversed(smaller)}
    return [now, *(name for name in smaller if name in one_each.values())]


def _scheme(subject: Subject) -> str | None:
    return subject.scheme.kind if subject.scheme else None


def _bits(scheme: str | None, dtype: str) -> int:
    return 8 * BYTES[dtype] if scheme is None else _BITS[scheme]


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
