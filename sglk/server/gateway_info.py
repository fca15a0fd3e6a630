"""What stands behind a gateway, and the few orders that engines elsewhere take."""

import asyncio
import os
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import sglk
from sglk.errors import RequestError
from sglk.server.entry import Entry, entry_of
from sglk.server.groups import describe_group

router = APIRouter()


@router.get("/server_info")
@router.get("/get_server_info", include_in_schema=False)
async def server_info(request: Request) -> dict[str, Any]:
    """Describe the gateway and what stands behind it, for records and benchmark clients."""
    entry = entry_of(request)
    config, stats = entry.config, entry.fleet.stats()
    versions = {"sglk": sglk.__version__}
    if config.engine.version is not None:
        versions[config.engine.name] = config.engine.version
    return {
        "version": sglk.__version__,
        "engine": config.engine.name,
        "chip": config.chip.name,
        "backend": config.backend.name,
        "simulated": False,
        "model": config.model.name,
        "served_model_name": entry.model_name,
        "revision": config.model.revision,
        "profile": str(entry.profile_path) if entry.profile_path else None,
        "runtime": asdict(next(iter(entry.fleet.configs.values())).config.runtime),
        "kv_capacity_tokens": stats.kv_capacity_tokens or None,
        "versions": versions,
        "pid": os.getpid(),
        "started": entry.created,
        "upstream": {name: replica.group.url or "launched" for name, replica in entry.fleet.configs.items()},
        "groups": [describe_group(entry, group) for group in entry.fleet.router.groups.values()],
        "stats": asdict(stats),
    }


@router.get("/flush_cache")
@router.post("/flush_cache")
@router.post("/reset_prefix_cache", include_in_schema=False)
async def flush_cache(request: Request) -> Response:
    """Empty the prefix caches; 409 while a replica refuses, as with live requests."""
    if not await asyncio.to_thread(entry_of(request).fleet.flush_cache):
        message = "a replica did not empty its cache, requests may be live; flush it when they are done"
        raise RequestError(message, code="engine_busy", status=409)
    return PlainTextResponse("cache flushed\n")


@router.get("/admin/runtime")
async def get_runtime(request: Request) -> dict[str, Any]:
    """Return the runtime parameters that the engines were started with."""
    return _in_force(entry_of(request))


@router.post("/admin/runtime")
async def set_runtime(request: Request) -> dict[str, Any]:
    """Refuse: an engine elsewhere takes its parameters when it starts."""
    name = entry_of(request).config.engine.name
    message = f"runtime parameters are fixed while an engine={name} runs; restart the server with the new ones"
    raise RequestError(message, code="fixed_runtime", status=409)


def _in_force(entry: Entry) -> dict[str, Any]:
    replicas = {
        name: {
            "runtime": asdict(replica.config.runtime),
            "kv_capacity_tokens": _capacity(entry, name),
        }
        for name, replica in entry.fleet.configs.items()
    }
    return {**next(iter(replicas.values())), "replicas": replicas}


def _capacity(entry: Entry, name: str) -> int:
    return sum(each.engine.stats().kv_capacity_tokens for each in entry.fleet.router.replicas if each.name == name)
