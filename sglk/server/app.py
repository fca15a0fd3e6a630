"""The HTTP application: routes, keys, counters and error bodies around one deployment."""

from fastapi import FastAPI

import sglk
from sglk.server import admin, advice, chat, completions, dashboard, groups, health, info, metrics, models, native
from sglk.server.access import RecordRequests
from sglk.server.auth import BearerAuth
from sglk.server.counting import CountRequests
from sglk.server.deployment import Deployment
from sglk.server.errors import add_error_handlers

ROUTERS = (
    models.router,
    completions.router,
    chat.router,
    native.router,
    health.router,
    info.router,
    metrics.router,
    admin.router,
    groups.router,
    dashboard.router,
    advice.router,
)


def create_app(deployment: Deployment) -> FastAPI:
    """Return the application that serves `deployment`, whose engine runs."""
    app = FastAPI(title="sglk", version=sglk.__version__, description="OpenAI and native API of one served model.")
    app.state.deployment = deployment
    for router in ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    server = deployment.config.server
    # The last one added is the outermost: refusals for a missing key are counted too.
    app.add_middleware(BearerAuth, api_key=server.api_key, admin_api_key=server.admin_api_key)
    app.add_middleware(CountRequests, counters=deployment.counters)
    app.add_middleware(RecordRequests)
    return app
