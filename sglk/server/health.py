"""Probes: `/health` asks for no work, `/health_generate` makes one real token."""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.errors import RequestError
from sglk.server.answers import collect
from sglk.server.choices import new_id
from sglk.server.deployment import Deployment, deployment_of

PROBE_TIMEOUT_S = 20.0
"""How long `/health_generate` waits for its token."""

PROBE_PROMPT = (0,)

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(request: Request) -> Response:
    """Answer 200 while a device group takes requests, 503 when none does or the server is shutting down."""
    deployment = deployment_of(request)
    return _health_response(deployment, _state(deployment))


@router.get("/health_generate")
async def health_generate(request: Request) -> Response:
    """Answer 200 once the engine has generated a token for this probe, else 503."""
    deployment = deployment_of(request)
    state = _state(deployment)
    if state == "ok":
        state = await _probe(deployment)
    return _health_response(deployment, state)


async def _probe(deployment: Deployment) -> str:
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    try:
        with deployment.bridge.open([GenerateRequest(new_id("health"), PROBE_PROMPT, sampling)]) as generation:
            await asyncio.wait_for(collect(generation), PROBE_TIMEOUT_S)
    except RequestError as error:
        return str(error)
    except asyncio.TimeoutError:
        return f"no token within {PROBE_TIMEOUT_S:g} s"
    return "ok"


def _state(deployment: Deployment) -> str:
    if deployment.draining:
        return "shutting down"
    router = deployment.fleet.router
    if router.takes_requests:
        return "ok"
    return "; ".join(f"{name}: {group.trouble or 'weight 0'}" for name, group in router.groups.items())


def _health_response(deployment: Deployment, state: str) -> Response:
    groups = {name: group.trouble or "ok" for name, group in deployment.fleet.router.groups.items()}
    if state == "ok":
        return JSONResponse({"status": "ok", "groups": groups})
    return JSONResponse({"status": "unavailable", "reason": state, "groups": groups}, status_code=503)
