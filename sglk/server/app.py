"""The HTTP application: routes, keys, counters and error bodies around one deployment."""

from collections.abc import Mapping

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import sglk
from sglk.server import (
    admin,
    advice,
    api_page,
    chat,
    completions,
    dashboard,
    gateway_info,
    groups,
    health,
    info,
    load,
    metrics,
    models,
    native,
    proxy,
    version,
)
from sglk.server.access import OnEnd, RecordRequests
from sglk.server.auth import BearerAuth
from sglk.server.counting import CountRequests
from sglk.server.direct import DirectRoutes, Endpoint
from sglk.server.entry import Entry
from sglk.server.errors import add_error_handlers
from sglk.server.gateway import Gateway
from sglk.server.openapi import describe
from sglk.server.origin import SameOrigin
from sglk.server.port import is_loopback

ROUTERS = (
    models.router,
    completions.router,
    chat.router,
    native.router,
    health.router,
    version.router,
    info.router,
    load.router,
    metrics.router,
    admin.router,
    groups.router,
    dashboard.router,
    advice.router,
    api_page.router,
)

GATEWAY_ROUTERS = (
    health.router,
    version.router,
    gateway_info.router,
    load.router,
    metrics.router,
    groups.router,
    dashboard.router,
    advice.router,
    api_page.router,
    proxy.router,
)
"""The last one passes on what the others do not answer."""


ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/completions": completions.completions,
    "/v1/chat/completions": chat.chat_completions,
    "/generate": native.generate,
}
"""What generates; routes too, for the application's description of itself."""


def create_app(deployment: Entry, on_end: OnEnd | None = None) -> FastAPI:
    """Return the application that serves `deployment`, whose engine runs; `on_end` is told of every request's end."""
    app = FastAPI(
        title="sglk",
        version=sglk.__version__,
        description="OpenAI and native API of one served model.",
        # FastAPI's own pages are put together from files of another site; ours is `sglk.server.api_page`.
        docs_url=None,
        redoc_url=None,
        # Newer FastAPI has its own, which it looks for with each request; sglk's is `sglk.server.tracing`.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.deployment = deployment
    gateway = isinstance(deployment, Gateway)
    for router in GATEWAY_ROUTERS if gateway else ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    describe(app)
    server = deployment.config.server
    app.add_middleware(DirectRoutes, endpoints=dict.fromkeys(ENDPOINTS, proxy.proxied) if gateway else ENDPOINTS)
    # The last one added is the outermost: refusals for a missing key are counted too.
    local = is_loopback(server.host)
    app.add_middleware(BearerAuth, api_key=server.api_key, admin_api_key=server.admin_api_key, local=local)
    app.add_middleware(SameOrigin, server=server)
    if server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id", deployment.config.router.session_header],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(CountRequests, counters=deployment.counters)
    app.add_middleware(RecordRequests, on_end=on_end)
    return app
