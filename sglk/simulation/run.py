"""One simulated run: draw the workload, let it pass on the virtual clock, and write it down as a benchmark would."""

import dataclasses
import gc
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone

from sglk.bench.machine import client_versions, describe_machine, describe_tool
from sglk.bench.metrics import Summary, count, duration, summarise
from sglk.bench.prompts import Vocabulary
from sglk.bench.record import CostRecord, GroupRecord, LoadRecord, Record, RequestRecord, ServerRecord
from sglk.bench.warnings import warnings_for
from sglk.bench.workload import TEXTS, Medium, plan, workload_dict
from sglk.config.bench_schema import BenchConfig
from sglk.config.fleet import ReplicaConfig, memory_of
from sglk.config.schema import ChipConfig
from sglk.config.simulate_schema import WhatIfConfig
from sglk.errors import ConfigError
from sglk.planner.calibration.find import AUTO
from sglk.simulation.clients import Clients
from sglk.simulation.clock import VirtualClock
from sglk.simulation.deployment import VirtualDeployment, VirtualReplica, Way
from sglk.simulation.words import TEMPLATE_TOKENS

_COUNTERS = {
    "prompt_tokens": "prompt_tokens",
    "cached_prompt_tokens": "cached_prompt_tokens",
    "generated_tokens": "generated_tokens",
    "engine_steps": "steps",
    "engine_busy_seconds": "busy_s",
    "retractions": "retractions",
    "evicted_tokens": "evicted_tokens",
}
"""Names under which a benchmark's record has a server's counters -> those of the engine's figures."""


def simulate(
    config: BenchConfig,
    replicas: Sequence[ReplicaConfig],
    *,
    calibration: str = AUTO,
    what_if: WhatIfConfig | None = None,
    command: str | None = None,
) -> Record:
    """Return the record of the workload of `config` on `replicas`, marked as simulated.

    `calibration` is `auto`, `none` or a file; of `what_if` the way between clients and engines counts. The prefix
    caches are empty at the beginning. The same configuration gives the same record but for the date. Raises
    CapacityError for a deployment that cannot start, ConfigError where figures of a chip are missing and for a workload
    that does not fit.
    """
    with _uncollected():
        return _simulated(config, replicas, calibration, what_if or WhatIfConfig(), command)


def _simulated(
    config: BenchConfig, replicas: Sequence[ReplicaConfig], calibration: str, what_if: WhatIfConfig, command: str | None
) -> Record:
    deployment = VirtualDeployment(replicas, config.router, VirtualClock(), calibration)
    vocab_size = min(each.engine.core.limits.vocab_size for each in deployment.replicas)
    medium = _medium(config, vocab_size)
    # Nothing needs to warm up here.
    workload = dataclasses.replace(config.workload, warmup_requests=0)
    conversations = plan(workload, medium, _salt(config) or "").measured
    _check_context(config, deployment, max(map(medium.least_tokens, conversations)))
    clients = Clients(deployment, _way(deployment.way, what_if), config.workload, vocab_size, config.bench)
    requests = clients.run(conversations)
    record = _record(config, deployment, medium, requests, clients.replicas, command)
    deployment.dismantle()
    return record


def _way(own: Way, what_if: WhatIfConfig) -> Way:
    asked = {"arrival_s": what_if.arrival_s, "delivery_s": what_if.delivery_s}
    if what_if.arrival_s is not None:
        asked["arrival_token_s"] = 0.0
    return dataclasses.replace(own, **{name: seconds for name, seconds in asked.items() if seconds is not None})


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave the garbage alone: a run makes none to speak of, and looking for it among its requests takes time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _medium(config: BenchConfig, vocab_size: int) -> Medium:
    if config.workload.kind in TEXTS:
        return Medium(None, overhead_tokens=TEMPLATE_TOKENS)
    return Medium(Vocabulary(vocab_size))


def _salt(config: BenchConfig) -> str | None:
    """Return the salt of the prompts: the one that is given, since a random one would change nothing but the tokens."""
    return (config.bench.salt or "simulated") if config.bench.cache == "salt" else None


def _check_context(config: BenchConfig, deployment: VirtualDeployment, longest: int) -> None:
    limit = min(each.engine.core.limits.context_length for each in deployment.replicas)
    if longest > limit:
        raise ConfigError(
            f"workload {config.workload.name!r} asks for {longest} tokens of prompt and answer, the model takes "
            f"{limit}; lower workload.input_len, .prefix_len or .output_len (of a file workload.max_input_len)"
        )


def _record(
    config: BenchConfig,
    deployment: VirtualDeployment,
    medium: Medium,
    requests: list[RequestRecord],
    answered: dict[int, str],
    command: str | None,
) -> Record:
    now = datetime.now(timezone.utc)
    counts, bad = count(requests), sum(not request.ok for request in requests)
    span_s, first = duration(requests), deployment.replicas[0]
    summary = summarise(requests, config.bench.slo)
    groups = _groups(config, deployment, requests, answered, span_s, summary)
    record = Record(
        id="",
        kind="simulated",
        created=now.isoformat(timespec="seconds"),
        command=command,
        tool=describe_tool(),
        machine=describe_machine(),
        versions=client_versions(),
        chip=config.chip.name,
        model=config.model.name,
        engine=config.engine.name,
        backend=config.backend.name,
        server=_server(first),
        runtime=asdict(first.plan.config.runtime),
        workload=workload_dict(config.workload),
        load=_load(config, medium),
        counts=counts,
        duration_s=round(span_s, 6),
        valid=counts.completed > 0 and bad <= config.bench.max_failure_rate * counts.requests,
        summary=summary,
        engine_stats=_with_hit_rate([group.engine_stats for group in groups]),
        warnings=[*_of_the_run(config, requests), *_notes(groups), *_crowded(deployment.replicas)],
        simulated_groups=groups,
        requests=requests,
    )
    record.id = f"{now:%Y%m%dT%H%M%S}-{_digest(record)}"
    return record


def _of_the_run(config: BenchConfig, requests: Sequence[RequestRecord]) -> list[str]:
    return warnings_for(requests, config.workload, asked_cache=config.bench.cache, cache=config.bench.cache)


def _load(config: BenchConfig, medium: Medium) -> LoadRecord:
    return LoadRecord(
        api="chat" if config.workload.kind in TEXTS else "generate",
        cache=config.bench.cache,
        url="simulated",
        timeout_s=config.bench.timeout_s,
        max_failure_rate=config.bench.max_failure_rate,
        salt=_salt(config),
        tokens_per_word=None if medium.vocabulary is not None else medium.tokens_per_word,
        slo=asdict(config.bench.slo),
        sessions=config.bench.sessions,
    )


def _server(replica: VirtualReplica) -> ServerRecord:
    found = replica.plan.found
    return ServerRecord(
        runtime=asdict(replica.plan.config.runtime),
        kv_capacity_tokens=replica.engine.core.pool.num_tokens,
        weights_bytes=found.weights.total,
        peak_memory_bytes=found.weights.total + found.kv_bytes + found.activations,
        device=f"{replica.plan.config.chip.title} (simulated)",
        dtype=found.dtype,
    )


def _groups(
    config: BenchConfig,
    deployment: VirtualDeployment,
    requests: Sequence[RequestRecord],
    answered: dict[int, str],
    span_s: float,
    whole: Summary,
) -> list[GroupRecord]:
    members: dict[str, list[VirtualReplica]] = {}
    for each in deployment.replicas:
        members.setdefault(each.group, []).append(each)
    found = []
    for name, replicas in members.items():
        names, first = {each.name for each in replicas}, replicas[0]
        own = [request for request in requests if answered.get(request.index) in names]
        basis = first.cost.basis
        found.append(
            GroupRecord(
                name=name,
                chip=first.plan.config.chip.name,
                model=first.plan.config.model.name,
                weight=deployment.router.weights.shares[name],
                replicas=len(replicas),
                devices=len(replicas) * first.plan.found.tp_size,
                requests=len(own),
                busy_share=_busy_share(replicas, span_s),
                kv_capacity_tokens=first.engine.core.pool.num_tokens,
                kv_bytes_per_token=first.plan.found.kv_bytes_per_token,
                peak_kv_tokens=max(each.engine.peak_tokens for each in replicas),
                weights_bytes=first.plan.found.weights.total,
                runtime=asdict(first.plan.config.runtime),
                cost=CostRecord(basis.kind, basis.name, basis.error, list(basis.notes)),
                summary=dict(whole) if len(own) == len(requests) else summarise(own, config.bench.slo),
                engine_stats=_stats(replicas),
                figures=_figures(first.plan.config.chip),
            )
        )
    return found


def _figures(chip: ChipConfig) -> dict[str, float]:
    stated = {name: getattr(chip, name) for name in ("memory_gib", "bandwidth_gb_s", "interconnect_gb_s")}
    stated |= {f"peak_tflops.{dtype}": rate for dtype, rate in chip.peak_tflops.items()}
    return {name: float(value) for name, value in stated.items() if value is not None}


def _busy_share(replicas: Sequence[VirtualReplica], span_s: float) -> float:
    # A step for requests that were given up may end after the last client has left.
    shares = [min(1.0, each.engine.busy_s / span_s) for each in replicas] if span_s else [0.0]
    return round(sum(shares) / len(shares), 6)


def _stats(replicas: Sequence[VirtualReplica]) -> dict[str, float]:
    stats = [each.engine.stats() for each in replicas]
    return _with_hit_rate([{name: float(getattr(each, own)) for name, own in _COUNTERS.items()} for each in stats])


def _with_hit_rate(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the sums of counters, and the hit rate that follows."""
    total: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
    for part in parts:
        for name in _COUNTERS:
            total[name] += part[name]
    if total["prompt_tokens"]:
        total["cache_hit_rate"] = total["cached_prompt_tokens"] / total["prompt_tokens"]
    return total


def _notes(groups: Sequence[GroupRecord]) -> list[str]:
    """Say how far to believe the figures."""
    notes = []
    for group in groups:
        if group.cost.kind == "roofline":
            notes.append(f"{group.chip}: times are of a roofline over the chip's peak figures, not calibrated")
        notes += [f"{group.chip}: {note}" for note in group.cost.notes]
    return list(dict.fromkeys(notes))


def _crowded(replicas: Sequence[VirtualReplica]) -> list[str]:
    """Say which devices would have to compute for several replicas at a time."""
    users: dict[str, list[str]] = {}
    for each in replicas:
        config = each.plan.config
        for memory in dict.fromkeys(memory_of(device, config) for device in config.groups[0].devices):
            users.setdefault(memory, []).append(each.name)
    return [
        f"{len(names)} replicas share {memory} ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''}), and each "
        "is timed as if it were alone there: together they are slower"
        for memory, names in users.items()
        if len(names) > 1
    ]


def _digest(record: Record) -> str:
    """Return six digits that the configuration and the figures of a record decide, and its date does not."""
    shape = dataclasses.replace(record, created="", id="", command=None, requests=[])
    return hashlib.sha256(json.dumps(asdict(shape), sort_keys=True).encode()).hexdigest()[:6]
