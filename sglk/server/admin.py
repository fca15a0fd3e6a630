"""Routes that change the running server: runtime parameters and the prefix cache."""

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sglk.errors import RequestError
from sglk.server.body import Body, body_schema, read_object
from sglk.server.deployment import Deployment, deployment_of
from sglk.server.runtime_change import changed_runtime

router = APIRouter()


@router.get("/admin/runtime")
async def get_runtime(request: Request) -> dict[str, Any]:
    """Return the runtime parameters in force and the KV capacity that they give; `replicas` has those of each."""
    return _in_force(deployment_of(request))


@router.post("/admin/runtime", openapi_extra=body_schema(Body))
async def set_runtime(request: Request, force: bool = False, group: str | None = None) -> dict[str, Any]:
    """Change runtime parameters without loading the weights again; the body has the keys to change.

    They change for all device groups, or for `group` alone.

    Scheduler and KV pool are rebuilt, so the prefix cache is empty afterwards. While requests are live the answer is
    409, unless `force` aborts them.
    """
    deployment = deployment_of(request)
    chosen = None if group is None else deployment.fleet.router.group(group).name
    changes = await read_object(request)
    async with deployment.changing:
        fleet, engines = deployment.fleet, deployment.fleet.engines
        runtimes = {
            name: changed_runtime(fleet.configs[name].config, engines[name].runtime, changes)
            for name in engines
            if chosen is None or fleet.configs[name].group.name == chosen
        }
        await asyncio.to_thread(fleet.reconfigure, runtimes, force=force)
        deployment.bridge.limit = deployment.open_limit
    return _in_force(deployment)


@router.get("/flush_cache")
@router.post("/flush_cache")
@router.post("/reset_prefix_cache", include_in_schema=False)
async def flush_cache(request: Request) -> Response:
    """Empty the prefix cache; 409 while requests are live."""
    if not await asyncio.to_thread(deployment_of(request).fleet.flush_cache):
        raise RequestError("requests are live; flush the cache when they are done", code="engine_busy", status=409)
    return PlainTextResponse("cache flushed\n")


def _in_force(deployment: Deployment) -> dict[str, Any]:
    fleet = deployment.fleet
    replicas = {
        name: {"runtime": asdict(engine.runtime), "kv_capacity_tokens": engine.stats().kv_capacity_tokens}
        for name, engine in fleet.engines.items()
    }
    return {**next(iter(replicas.values())), "replicas": replicas}
