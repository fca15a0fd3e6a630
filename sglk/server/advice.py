"""`/admin/advice`: what the server's own figures mean, and what to try."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, generate_latest
from starlette.requests import Request

from sglk.adviser.snapshot import Snapshot, read_snapshot
from sglk.server.entry import Entry, entry_of

EVERY_S = 5.0

router = APIRouter(prefix="/admin")


@router.get("/advice")
async def advice(request: Request) -> list[dict[str, Any]]:
    """Name causes in the figures of the last minute, each with its evidence and a command to try."""
    deployment = entry_of(request)
    facts = facts_of(deployment, str(request.base_url).rstrip("/"))
    # In a thread: to read the metrics and 15 minutes of the past takes longer than a stream should wait.
    return await asyncio.to_thread(_advice, deployment, facts)


def _advice(deployment: Entry, facts: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    return [asdict(each) for each in deployment.history.advice(facts, _snapshot(deployment.registry))]


async def watch(deployment: Entry) -> None:
    """Keep the history of a deployment's figures until the event loop ends."""
    while True:
        deployment.history.add(await asyncio.to_thread(_snapshot, deployment.registry))
        await asyncio.sleep(EVERY_S)


def _snapshot(registry: CollectorRegistry) -> Snapshot:
    return read_snapshot(generate_latest(registry).decode())


def facts_of(deployment: Entry, url: str) -> dict[str, Mapping[str, str]]:
    """Return, per device group, what commands need to name it."""
    configs = deployment.fleet.configs.values()
    return {
        config.group.name: {"url": url, "chip": config.config.chip.name, "model": config.config.model.name}
        for config in configs
    }
