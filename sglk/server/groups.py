"""Routes that show device groups and move traffic between them."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from sglk.cluster.group import DeviceGroup, Replica
from sglk.cluster.ramp import MIN_REQUESTS, Ramp, RampPlan
from sglk.cluster.router import Router
from sglk.cluster.slo import parse_slo
from sglk.cluster.weights import Weights
from sglk.errors import RequestError
from sglk.server.body import Body, body_schema, read_body, read_object
from sglk.server.entry import Entry, entry_of
from sglk.server.orders import Order

DRAIN_TIMEOUT_S = 60.0
"""How long running requests may take to finish when the caller does not say."""

DRAIN_POLL_S = 0.05
"""How often a draining group is looked at."""

MAX_DRAIN_S = 24 * 3600.0
"""Longest drain that can be asked for."""

MAX_REASON = 200
"""Characters that may tell why weights change; they go into log, history and page."""

RECENT_S = 60.0
"""Over which time a group's latencies and error rate are shown."""

router = APIRouter(prefix="/admin", tags=["device groups"])


class DrainBody(Body):
    """How to drain a group."""

    timeout_s: float = Field(
        default=DRAIN_TIMEOUT_S, ge=0, le=MAX_DRAIN_S, description=f"a number of seconds from 0 to {MAX_DRAIN_S:g}"
    )
    force: bool = Field(default=False, description="true or false")


class RampBody(Body):
    """Where to ramp, and under which limits."""

    group: str = Field(description="the name of a device group")
    to: float = Field(description="a percentage above 0 and up to 100")
    step: float = Field(description="a percentage above 0 and up to 100")
    every_s: float = Field(description="a number of seconds above 0")
    slo: str | None = Field(default=None, description="limits such as ttft_p99<2s,error_rate<1%")
    min_requests: int = Field(default=MIN_REQUESTS, ge=1, description="a whole number from 1 up")


@router.get("/groups")
async def groups(request: Request) -> dict[str, Any]:
    """Describe every group and replica, the weights in force and the ramp."""
    return overview(entry_of(request))


@router.patch("/groups/weights", openapi_extra=body_schema(Body))
async def set_weights(request: Request) -> dict[str, Any]:
    """Change weights; the body maps groups to weights, and groups that it does not name keep theirs.

    Weights are ratios, whatever their sum. `{"weights": {...}, "reason": "..."}` also says why. With `"if_number": N`
    beside it they replace the weights of that number alone: 409 when somebody else has moved the traffic since.
    """
    body = await read_object(request)
    wrapped = isinstance(body.get("weights"), dict)
    shares, reason, number = (body["weights"], _reason(body), _number(body)) if wrapped else (body, "", None)
    if not shares:
        raise RequestError('the body names no group; send such as {"old": 80, "new": 20}', param="weights")
    deployment = entry_of(request)
    deployment.fleet.router.set_weights(shares, "admin", reason, if_number=number)
    return overview(deployment)


@router.post("/groups/rollback")
async def rollback(request: Request) -> dict[str, Any]:
    """Return to the weights before the last change, or before the ramp; 409 when there are none."""
    deployment = entry_of(request)
    deployment.fleet.router.rollback("asked for by an operator")
    return overview(deployment)


@router.post("/groups/{name}/drain", openapi_extra=body_schema(DrainBody, required=False))
async def drain(request: Request, name: str) -> dict[str, Any]:
    """Send no new request to a group from now on; what still runs after `timeout_s` ends with an error.

    Draining the last group that takes requests is refused (409) unless `force`. The same order again changes nothing;
    with another `timeout_s`, time begins anew.
    """
    body = await _read_or(request, DrainBody)
    deployment = entry_of(request)
    group = deployment.fleet.router.drain(name, force=body.force)
    work = partial(_finish_drain, deployment, name, body.timeout_s)
    deployment.orders.give(name, Order("drain", body.timeout_s), work)
    return describe_group(deployment, group)


@router.post("/groups/{name}/undrain")
async def undrain(request: Request, name: str) -> dict[str, Any]:
    """Let a group take requests again; a drain or restart of it that is on its way ends."""
    deployment = entry_of(request)
    group = deployment.fleet.router.undrain(name)
    deployment.orders.cancel(name)
    return describe_group(deployment, group)


@router.post("/groups/{name}/restart", openapi_extra=body_schema(DrainBody, required=False))
async def restart(request: Request, name: str) -> dict[str, Any]:
    """Drain a group, start its replicas again in the background, and let it take requests through probes."""
    body = await _read_or(request, DrainBody)
    deployment = entry_of(request)
    group = deployment.fleet.router.drain(name, force=body.force)
    work = partial(_drain_and_restart, deployment, name, body.timeout_s)
    deployment.orders.give(name, Order("restart", body.timeout_s), work)
    return describe_group(deployment, group)


@router.post("/ramp", openapi_extra=body_schema(RampBody))
async def start_ramp(request: Request) -> dict[str, Any]:
    """Move traffic to a group step by step; when a limit breaks, the weights before the ramp come back at once."""
    body = await read_body(request, RampBody)
    limits = parse_slo(body.slo) if body.slo is not None else ()
    plan = RampPlan(body.group, body.to, body.step, body.every_s, limits, body.min_requests)
    return describe_ramp(entry_of(request).fleet.start_ramp(plan))


@router.get("/ramp")
async def show_ramp(request: Request) -> dict[str, Any]:
    """Describe the ramp on its way, or the last one."""
    ramp = entry_of(request).fleet.ramp
    if ramp is None:
        raise RequestError("there has been no ramp", code="no_ramp", status=404)
    return describe_ramp(ramp)


@router.delete("/ramp")
async def stop_ramp(request: Request) -> dict[str, Any]:
    """Stop the ramp and leave the weights where they are."""
    return describe_ramp(entry_of(request).fleet.stop_ramp("asked for by an operator"))


def overview(deployment: Entry) -> dict[str, Any]:
    """Return what `/admin/groups` shows."""
    fleet = deployment.fleet
    return {
        "groups": [describe_group(deployment, group) for group in fleet.router.groups.values()],
        "weights": _describe_weights(fleet.router, fleet.router.weights),
        "history": [_describe_weights(fleet.router, weights) for weights in fleet.router.history.entries()],
        "ramp": None if (ramp := fleet.ramp) is None else describe_ramp(ramp),
        "weights_file": None
        if fleet.weights_file is None
        else {"path": str(fleet.weights_file.path), "error": fleet.weights_file.error},
    }


def describe_group(deployment: Entry, group: DeviceGroup) -> dict[str, Any]:
    """Return one group's entry; `share_taken` is that of the last minute's requests, 0 to 1, whatever the weights."""
    router = deployment.fleet.router
    shares, taken = router.weights.shares, router.shares_taken[group.name]
    return {
        "name": group.name,
        "weight": shares[group.name],
        "share_taken": None if taken is None else round(taken, 4),
        "standby": group.standby,
        "state": group.state,
        "ready": group.ready,
        "trouble": group.trouble,
        "open_requests": group.open_requests,
        "recent": group.recent.figures(RECENT_S),
        "replicas": [_describe_replica(deployment, replica) for replica in group.replicas],
    }


def describe_ramp(ramp: Ramp) -> dict[str, Any]:
    """Return a ramp's entry; shares are per cent of the traffic."""
    plan = ramp.plan
    return {
        "group": plan.group,
        "to": plan.to,
        "step": plan.step,
        "every_s": plan.every_s,
        "slo": [limit.text for limit in plan.limits],
        "share": ramp.share,
        "state": ramp.state,
        "reason": ramp.reason,
    }


def _describe_replica(deployment: Entry, replica: Replica) -> dict[str, Any]:
    config = deployment.fleet.configs[replica.name].config
    engine = deployment.fleet.engines.get(replica.name)
    stats = replica.engine.stats()
    return {
        "name": replica.name,
        "chip": config.chip.name,
        "devices": config.groups[0].devices,
        "simulated": engine is not None and engine.simulated,
        # What `auto` came to on this device; an engine of another kind does not tell.
        "dtype": None if engine is None else engine.dtype,
        "kv_cache_dtype": None if engine is None else engine.kv_cache_dtype,
        "quantization": None if engine is None else engine.quantization,
        "state": replica.state,
        "breaker": replica.breaker.state,
        "last_error": replica.breaker.last_error,
        "open_requests": replica.open_requests,
        "running_requests": stats.running_requests,
        "queued_requests": stats.queued_requests,
        "kv_used_tokens": stats.kv_used_tokens,
        "kv_capacity_tokens": stats.kv_capacity_tokens,
        "picks": replica.counters.picks,
        "ended": dict(replica.counters.ended),
        "moved": replica.counters.moved,
        "restarts": replica.counters.restarts,
    }


def _describe_weights(router: Router, weights: Weights) -> dict[str, Any]:
    percent = {name: round(100 * share, 3) for name, share in router.shares_by_weight(weights).items()}
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(weights.since_s))
    return {**asdict(weights), "since": since, "percent": percent}


def _reason(body: Mapping[str, Any]) -> str:
    reason = body.get("reason")
    if reason is not None and not (isinstance(reason, str) and len(reason) <= MAX_REASON and reason.isprintable()):
        message = f"`reason` must be a line of at most {MAX_REASON} characters"
        raise RequestError(message, param="reason", code="invalid_value")
    return reason or ""


def _number(body: Mapping[str, Any]) -> int | None:
    number = body.get("if_number")
    if number is not None and type(number) is not int:
        message = "`if_number` must be the number of the weights that are to be replaced, as GET /admin/groups tells it"
        raise RequestError(message, param="if_number", code="invalid_value")
    return number


async def _read_or(request: Request, shape: type[DrainBody]) -> DrainBody:
    # A drain without any wish is sent without a body by most.
    try:
        return await read_body(request, shape)
    except RequestError as error:
        if error.code != "empty_body":
            raise
        return shape()


async def _finish_drain(deployment: Entry, name: str, timeout_s: float) -> None:
    router, loop = deployment.fleet.router, asyncio.get_running_loop()
    over_s = loop.time() + timeout_s
    # Not in a thread: a few drains of an hour would leave none for long prompts.
    while router.group(name).state == "draining" and loop.time() < over_s:
        await asyncio.sleep(min(DRAIN_POLL_S, over_s - loop.time()))
    if router.group(name).state == "draining":
        router.expire(name, f"device group {name!r} was drained before the answer was complete")


async def _drain_and_restart(deployment: Entry, name: str, timeout_s: float) -> None:
    await _finish_drain(deployment, name, timeout_s)
    deployment.fleet.supervisor.restart(name)
    deployment.fleet.router.undrain(name)
