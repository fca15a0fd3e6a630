"""`/dashboard`: one page that shows the deployment live and moves its traffic.

The page itself holds no figures and is open, as `/health` is. What it shows comes from `/dashboard/events` and takes
the API key or the admin key, where there are any; what it changes goes through the admin routes and takes their key.
"""

import base64
import hashlib
import re
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sglk.server.entry import Entry, entry_of
from sglk.server.live_snapshot import take_snapshot
from sglk.server.streaming import EventStream

PAGE = Path(__file__).with_name("dashboard.html")

EVENTS_ROUTE = "/dashboard/events"

router = APIRouter(tags=["dashboard"])


@router.get("/dashboard", response_class=HTMLResponse)
async def page() -> Response:
    """Return the page: one file, without anything from elsewhere."""
    html, policy = _page()
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(html, headers=headers)


@router.get(EVENTS_ROUTE, response_class=Response)
async def events(request: Request) -> Response:
    """Stream a snapshot a second as server-sent events, until the client leaves or the server shuts down."""
    deployment = entry_of(request)
    watch(deployment)
    return EventStream(deployment.feed.events(), nullcontext())


def watch(deployment: Entry) -> None:
    """Begin to take snapshots of a deployment; harmless when repeated."""
    deployment.feed.start(partial(take_snapshot, deployment))


@cache
def _page() -> tuple[str, str]:
    """Return the page, and the policy under which a browser runs its own script and style and nothing else."""
    html = PAGE.read_text(encoding="utf-8")
    script, style = (_hash(html, element) for element in ("script", "style"))
    rules = (
        "default-src 'none'",
        f"script-src {script}",
        f"style-src {style}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return html, "; ".join(rules)


def _hash(html: str, element: str) -> str:
    content = re.search(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    assert content is not None
    digest = hashlib.sha256(content.group(1).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
