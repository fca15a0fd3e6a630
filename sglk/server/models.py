"""`GET /v1/models`."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from sglk.server.deployment import Deployment, deployment_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """List the served models (OpenAI)."""
    return {"object": "list", "data": [_card(deployment_of(request))]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """Describe one served model (OpenAI)."""
    deployment = deployment_of(request)
    deployment.check_model(name)
    return _card(deployment)


def _card(deployment: Deployment) -> dict[str, Any]:
    return {
        "id": deployment.model_name,
        "object": "model",
        "created": deployment.created,
        "owned_by": "sglk",
        "root": deployment.config.model.path or deployment.model_name,
        "max_model_len": deployment.context_length,
    }
