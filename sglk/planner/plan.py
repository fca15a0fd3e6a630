"""The plan of a deployment: what each replica holds, whether it fits, and what makes it fit."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sglk.config.fleet import ReplicaConfig, memory_of
from sglk.config.groups import SIMULATED
from sglk.config.plan_schema import RoomConfig
from sglk.config.profiles import NATIVE
from sglk.config.schema import ServeConfig
from sglk.models.context_length import served_context_length
from sglk.planner.footprint import Footprint
from sglk.planner.model import PlannedModel, model_of, planning_key
from sglk.planner.room import IN_MAIN_MEMORY, Room, room_of
from sglk.planner.upstream import AutomaticValues, automatic_values
from sglk.planner.ways import Subject, Wanted, Way, fits, roomiest_pool, undeclared, ways_to_fit

Verdict = Literal["fits", "fits with changes", "cannot"]

_MIB = 2**20
_GRAPHS = "cuda"
"""Backend whose devices capture graphs in SGLang by default."""


@dataclass(frozen=True)
class ReplicaPlan:
    """One engine of a deployment."""

    name: str
    config: ServeConfig
    subject: Subject
    wanted: Wanted
    found: Footprint
    verdict: Verdict
    why: str
    ways: list[Way]
    """Smallest sets of changes that make it fit, the cheapest first; empty where it fits, or nothing helps.

    Where it fits on several devices, of which nobody said how many, those that make it fit fewer.
    """
    note: str | None
    """Why it has as many devices as it has; None where that was said, or is one."""
    undeclared: list[str]
    """Schemes that would make it fit this number of devices, where no change does and the chip has them not."""
    warnings: list[str]
    """What may go wrong though it fits."""
    upstream: list[AutomaticValues]
    """What SGLang would choose by itself, and beside our own chunk; empty where that was not asked for."""

    def upstream_kv_tokens(self, values: AutomaticValues) -> int:
        """Return the KV tokens beside these weights with SGLang's own fraction."""
        pool = int(values.mem_fraction_static * self.subject.room.total) - self.found.weights.total
        return max(0, pool // self.found.kv_bytes_per_token)


@dataclass(frozen=True)
class DevicePlan:
    """One device's memory, with all replicas that work in it; sizes in bytes."""

    name: str
    total: int
    replicas: list[str]
    fraction: float
    """Shares of the memory that the replicas plan with, together."""
    taken: int
    """Weights and KV pools."""


@dataclass(frozen=True)
class DeploymentPlan:
    """All replicas, in the order of the groups, and all devices."""

    replicas: list[ReplicaPlan]
    devices: list[DevicePlan]

    @property
    def verdict(self) -> Verdict:
        """That of the replica which fits worst."""
        found = {replica.verdict for replica in self.replicas}
        return "cannot" if "cannot" in found else "fits with changes" if "fits with changes" in found else "fits"


def plan_deployment(replicas: Sequence[ReplicaConfig], asked: RoomConfig) -> DeploymentPlan:
    """Plan the memory of every replica; replicas in the same memory are placed one after another.

    Raises ConfigError for a chip without memory to plan with and for a context that the engine would refuse,
    ModelLoadError for a model of which nothing is known.
    """
    shares = _shares(replicas)
    taken: dict[str, int] = defaultdict(int)
    models: dict[str, PlannedModel] = {}
    rooms: dict[str, Room] = {}
    plans = []
    for each in replicas:
        key = planning_key(each.config)
        if key not in models:
            models[key] = model_of(each.config)
        model = models[key]
        model.check_split(each.config.runtime)
        if each.config.engine.name == NATIVE:
            served_context_length(model.spec.max_position_embeddings, each.config.runtime)
        memories = memories_of(each)
        for memory in memories:
            rooms.setdefault(memory, room_of(each.config))
        room = min((replace(rooms[name], free=rooms[name].free - taken[name]) for name in memories), key=_free)
        subject = Subject(model, each.config.chip, room, each.config.runtime, 1 - _others(each, replicas))
        plans.append(plan := _plan(each, subject, asked))
        size = plan.found.weights.total + plan.found.kv_bytes
        for memory in memories:
            taken[memory] += size * (plan.found.tp_size if room.host_memory else 1)
    return DeploymentPlan(plans, _devices(replicas, rooms, shares, taken))


def memories_of(replica: ReplicaConfig) -> list[str]:
    """Return the memories that a replica works in: one for each device, but main memory is one for all."""
    kinds = [device.partition(":") for device in replica.config.groups[0].devices]
    names = [kind if kind == IN_MAIN_MEMORY else f"{kind}:{index}" for kind, _, index in kinds]
    if replica.config.backend.name == SIMULATED:
        # Every replica imagines devices of its own.
        names = [f"{name} of {replica.name}" for name in names]
    return list(dict.fromkeys(names))


def _others(replica: ReplicaConfig, replicas: Sequence[ReplicaConfig]) -> float:
    """Return the share that other replicas are to have of a device: of simulated ones too, all have to add up."""

    def named(each: ReplicaConfig) -> set[str]:
        return {memory_of(device, each.config) for device in each.config.groups[0].devices}

    beside = [each for each in replicas if each is not replica]
    return max(
        sum(each.config.runtime.mem_fraction_static for each in beside if memory in named(each))
        for memory in named(replica)
    )


def _free(room: Room) -> int:
    return room.free


def _shares(replicas: Sequence[ReplicaConfig]) -> dict[str, float]:
    shares: dict[str, float] = defaultdict(float)
    for each in replicas:
        for memory in memories_of(each):
            shares[memory] += each.config.runtime.mem_fraction_static
    return shares


def _plan(replica: ReplicaConfig, subject: Subject, asked: RoomConfig) -> ReplicaPlan:
    limit = subject.runtime.context_length
    length = asked.context_length or limit or subject.model.spec.max_position_embeddings
    wanted = Wanted(min(length, limit or length), asked.requests)
    found = subject.footprint(subject.runtime)
    good = fits(found, wanted)
    ways = _ways(subject, wanted, found, replica.note is not None)
    return ReplicaPlan(
        name=replica.name,
        config=replica.config,
        subject=subject,
        wanted=wanted,
        found=found,
        note=replica.note,
        verdict="fits" if good else "fits with changes" if ways else "cannot",
        why=_why(found, wanted, subject.runtime.mem_fraction_static)
        + ("" if good or ways else _nothing_helps(subject, wanted)),
        ways=ways,
        undeclared=[] if good or _same_devices(ways, found) else undeclared(subject, wanted),
        warnings=list(_warnings(found, subject, replace(wanted, context_length=length))),
        upstream=_upstream(replica.config, subject) if (asked.engine or replica.config.engine.name) == "sglang" else [],
    )


def _ways(subject: Subject, wanted: Wanted, found: Footprint, automatic: bool) -> list[Way]:
    good = fits(found, wanted)
    if not automatic:
        return [] if good else ways_to_fit(subject, wanted)
    single = replace(subject, runtime=replace(subject.runtime, tp_size=1))
    return [way for way in ways_to_fit(single, wanted) if way.result.tp_size < found.tp_size or not good]


def _same_devices(ways: Sequence[Way], found: Footprint) -> bool:
    return any(way.result.tp_size == found.tp_size for way in ways)


def _nothing_helps(subject: Subject, wanted: Wanted) -> str:
    roomiest = roomiest_pool(subject)
    devices = "one device" if roomiest.tp_size == 1 else f"{roomiest.tp_size} devices"
    dtypes = [roomiest.dtype] if roomiest.dtype != subject.footprint(subject.runtime).dtype else []
    scheme = " and ".join([roomiest.quantization, *dtypes]) if roomiest.quantization else roomiest.dtype
    if roomiest.kv_tokens:
        rooms = (
            (roomiest.requests(wanted.context_length), wanted.context_length),
            (wanted.requests, roomiest.longest(wanted.requests)),
        )
        most = " or ".join(f"{requests} x {length}" for requests, length in rooms if requests and length)
        return f"; room for at most {most}: weights in {scheme} and KV in {roomiest.kv_dtype} on {devices}"
    return f"; the smallest weights, {scheme} on {devices}, take {roomiest.weights.total / 2**30:.1f} GiB each"


def _warnings(found: Footprint, subject: Subject, asked: Wanted) -> Iterator[str]:
    own, limit = subject.model.spec.max_position_embeddings, subject.runtime.context_length
    length, window = asked.context_length, subject.runtime.max_running_requests
    if asked.requests > window:
        yield f"of {asked.requests} requests no more than runtime.max_running_requests={window} run at a time"
    if limit is not None and length > limit:
        yield f"requests of {length} tokens are refused with runtime.context_length={limit}, and not planned for"
    elif length > own:
        yield f"requests of {length} tokens are longer than the {own} that the model was trained for"
    if found.kv_tokens and not subject.room.host_memory and subject.reserve(found) < found.reserve_needed:
        left, needed = subject.reserve(found) / 2**30, found.reserve_needed / 2**30
        yield (
            f"{left:.1f} GiB are left beside weights and KV, and the largest step takes about {needed:.1f}; "
            f"lower {_pool_key(subject)} or runtime.max_prefill_tokens"
        )


def _pool_key(subject: Subject) -> str:
    return f"runtime.{'mem_fraction_static' if subject.runtime.max_total_tokens is None else 'max_total_tokens'}"


def _why(found: Footprint, wanted: Wanted, fraction: float) -> str:
    weights, static, pool = (size / 2**30 for size in (found.weights.total, found.static, found.kv_bytes))
    budget = f"{fraction:g} of {found.planned / 2**30:.4g} GiB is {static:.1f} GiB, the weights take {weights:.1f}"
    if not found.kv_tokens:
        return f"the engine cannot start: {budget}" if static < weights else f"the engine cannot start: {found.problem}"
    if found.taken != found.static:
        budget = f"the weights take {weights:.1f} of {found.planned / 2**30:.4g} GiB, the stated pool {pool:.1f}"
    room = f"room for {found.kv_tokens} KV tokens"
    requests = found.requests(wanted.context_length)
    if requests:
        return f"{budget}, {room}: {requests} x {wanted.context_length}"
    return f"{budget}, {room}: less than one request of {wanted.context_length}"


def _upstream(config: ServeConfig, subject: Subject) -> list[AutomaticValues]:
    graphs = config.chip.backend == _GRAPHS and not config.runtime.disable_cuda_graph
    memory, runtime = subject.room.total / _MIB, config.runtime
    return [automatic_values(memory, runtime, graphs, chunk) for chunk in (None, runtime.chunked_prefill_size)]


def _devices(
    replicas: Sequence[ReplicaConfig], rooms: dict[str, Room], shares: dict[str, float], taken: dict[str, int]
) -> list[DevicePlan]:
    users: dict[str, list[str]] = defaultdict(list)
    for each in replicas:
        for memory in memories_of(each):
            users[memory].append(each.name)
    return [DevicePlan(name, rooms[name].total, users[name], shares[name], taken[name]) for name in rooms]
