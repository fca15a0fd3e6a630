"""Which sglk answers."""

from fastapi import APIRouter

import sglk

router = APIRouter()


@router.get("/version")
async def version() -> dict[str, str]:
    """Name the version of sglk."""
    return {"version": sglk.__version__}
