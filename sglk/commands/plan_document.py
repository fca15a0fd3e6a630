"""The JSON document of `sglk plan`: sizes in bytes, and every figure under one stable name."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sglk
from sglk.planner.options import kv_options, weight_options
from sglk.planner.plan import DeploymentPlan, ReplicaPlan
from sglk.planner.speed import Speed
from sglk.planner.upstream import VERSION
from sglk.planner.ways import Way

SCHEMA_VERSION = 1
"""Of the document: raised when a field changes its meaning or goes."""


def document(plan: DeploymentPlan, speeds: Mapping[str, Speed | str | None]) -> dict[str, Any]:
    """Return the plan as JSON holds it, with the speed of each replica by its name."""
    return {
        "schema_version": SCHEMA_VERSION,
        "sglk": sglk.__version__,
        "kind": "planned",
        "verdict": plan.verdict,
        "replicas": [_replica(replica) | _speed(speeds[replica.name]) for replica in plan.replicas],
        "devices": [asdict(device) for device in plan.devices],
    }


def _replica(plan: ReplicaPlan) -> dict[str, Any]:
    config, found, wanted = plan.config, plan.found, plan.wanted
    return {
        "name": plan.name,
        "group": config.groups[0].name,
        "devices": config.groups[0].devices,
        "chip": config.chip.name,
        "backend": config.backend.name,
        "model": config.model.name,
        "verdict": plan.verdict,
        "why": plan.why,
        "wanted": asdict(wanted),
        "dtype": found.dtype,
        "quantization": found.quantization,
        "tp_size": found.tp_size,
        "tp_size_note": plan.note,
        "tp_sizes": plan.subject.tp_sizes(),
        "per_device": _per_device(plan),
        "kv": {
            "dtype": found.kv_dtype,
            "bytes_per_token": found.kv_bytes_per_token,
            "tokens": found.kv_tokens,
            "page_size": found.page_size,
            "requests": found.requests(wanted.context_length),
        },
        "max_running_requests": config.runtime.max_running_requests,
        "ways": [_way(way) for way in plan.ways],
        "undeclared": plan.undeclared,
        "warnings": plan.warnings,
        "weight_options": [asdict(option) for option in weight_options(plan.subject)],
        "kv_options": [asdict(option) for option in kv_options(plan.subject, wanted)],
        "upstream": _upstream(plan),
    }


def _per_device(plan: ReplicaPlan) -> dict[str, Any]:
    found, room = plan.found, plan.subject.room
    return {
        "memory": room.total,
        "memory_source": room.source,
        "mem_fraction_static": plan.config.runtime.mem_fraction_static,
        "planned": found.planned,
        "static": found.static,
        "weights": {**asdict(found.weights), "total": found.weights.total},
        "kv_pool": found.kv_bytes,
        "reserve": plan.subject.reserve(found),
        "reserve_needed_estimate": found.reserve_needed,
    }


def _speed(found: Speed | str | None) -> dict[str, Any]:
    if not isinstance(found, Speed):
        return {"speed": None, "no_speed": found}
    return {"speed": {"kind": "estimated", **asdict(found), "output_tokens_per_s": found.output_tokens_per_s}}


def _upstream(plan: ReplicaPlan) -> dict[str, Any] | None:
    if not plan.upstream:
        return None
    automatic, with_our_chunk = ({**asdict(each), "kv_tokens": plan.upstream_kv_tokens(each)} for each in plan.upstream)
    return {"engine": f"sglang {VERSION}", "automatic": automatic, "with_our_chunk": with_our_chunk}


def _way(way: Way) -> dict[str, Any]:
    return {
        "changes": way.changes,
        "why": way.why,
        "weights": way.result.weights.total,
        "kv_tokens": way.result.kv_tokens,
    }
