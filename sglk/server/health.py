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
    """Answer 200 while the engine can serve, 503 when it is dead or the server is shutting down."""
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
    if not deployment.engine.is_alive:
        return f"engine stopped: {deployment.engine.failure or 'shut down'}"
    return "shutting down" if deployment.draining else "ok"


def _health_response(deployment: Deployment, state: str) -> Response:
    body = {"status": "ok" if state == "ok" else "unavailable", "groups": {deployment.group: state}}
    return JSONResponse(body, status_code=200 if state == "ok" else 503)
