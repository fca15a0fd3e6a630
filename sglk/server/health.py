"""Probes: `/health` asks for no work, `/health_generate` makes one real token."""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sglk.errors import RequestError
from sglk.server.answers import collect
from sglk.server.entry import Entry, entry_of

PROBE_TIMEOUT_S = 20.0
"""How long `/health_generate` waits for its token."""

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(request: Request) -> Response:
    """Answer 200 while a device group takes requests, 503 when none does or the server is shutting down."""
    deployment = entry_of(request)
    return _health_response(deployment, _state(deployment))


@router.get("/health_generate")
async def health_generate(request: Request) -> Response:
    """Answer 200 once the engine has generated a token for this probe, else 503."""
    deployment = entry_of(request)
    state = _state(deployment)
    if state == "ok":
        state = await _probe(deployment)
    return _health_response(deployment, state)


async def _probe(deployment: Entry) -> str:
    try:
        with deployment.bridge.open([deployment.probe_request()]) as generation:
            await asyncio.wait_for(collect(generation), PROBE_TIMEOUT_S)
    except RequestError as error:
        return str(error)
    except asyncio.TimeoutError:
        return f"no token within {PROBE_TIMEOUT_S:g} s"
    return "ok"


def _state(deployment: Entry) -> str:
    if deployment.draining:
        return "shutting down"
    router = deployment.fleet.router
    if router.takes_requests:
        return "ok"
    return "; ".join(f"{name}: {group.trouble or 'weight 0'}" for name, group in router.groups.items())


def _health_response(deployment: Entry, state: str) -> Response:
    groups = {name: group.trouble or "ok" for name, group in deployment.fleet.router.groups.items()}
    if state == "ok":
        return JSONResponse({"status": "ok", "groups": groups})
    return JSONResponse({"status": "unavailable", "reason": state, "groups": groups}, status_code=503)
