"""The short way into the routes that generate: they read their requests themselves, and need nothing of a framework."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sglk.server.errors import answer_to

Endpoint = Callable[[Request], Awaitable[Response]]


class DirectRoutes:
    """ASGI middleware that answers a POST to one of `endpoints` by calling it; all else goes on to the application.

    The application knows the same endpoints as routes, by which it describes them, and answers by the same rules;
    resolving parameters and wrapping answers there would take longer than all that they do themselves.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> None:
        self.app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await endpoint(request)
            await response(scope, receive, send)
        except Exception as error:
            answer = await answer_to(request, error)
            if answer is None:
                raise
            await answer(scope, receive, send)
