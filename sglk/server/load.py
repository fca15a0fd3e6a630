"""How much there is to do: `/get_load`, which SGLang's router asks for."""

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from sglk.server.entry import entry_of

router = APIRouter()


@router.get("/get_load")
async def get_load(request: Request) -> list[dict[str, Any]]:
    """Report the load, one entry per replica (SGLang)."""
    several = [replica.engine.stats() for replica in entry_of(request).fleet.router.replicas]
    return [
        {
            "dp_rank": rank,
            "num_reqs": stats.running_requests + stats.queued_requests,
            "num_waiting_reqs": stats.queued_requests,
            "num_tokens": stats.kv_used_tokens,
            "num_pending_tokens": 0,
            "ts_tic": time.perf_counter(),
        }
        for rank, stats in enumerate(several)
    ]
