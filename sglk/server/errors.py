"""OpenAI's error body for every failure of every route."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from sglk.cluster.router import NO_GROUP
from sglk.errors import RequestError, SglkError
from sglk.server.counting import CLIENT_CLOSED_REQUEST, set_failure
from sglk.server.request_record import HEADER, current_request_id

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
"""What a client is told to wait: queues move every step, and another group may take what one has lost at once."""

NO_GROUP_RETRY_AFTER_S = 5
"""The same while no group takes requests: one that starts again needs some seconds."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable"}


def error_body(
    message: str, *, status: int = 400, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return `{"error": {"message", "type", "param", "code"}}`."""
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": _TYPES.get(status, fallback), "param": param, "code": code}}


def error_response(error: RequestError) -> JSONResponse:
    """Return the HTTP form of `error`, with the headers that its status asks for."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in (429, 503):
        headers["Retry-After"] = str(NO_GROUP_RETRY_AFTER_S if error.code == NO_GROUP else RETRY_AFTER_S)
    if error.status in (408, 413):
        # What is still to come of the body is not read.
        headers["Connection"] = "close"
    body = error_body(str(error), status=error.status, param=error.param, code=error.code)
    return JSONResponse(body, status_code=error.status, headers=headers)


def add_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every exception with an OpenAI error body."""
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _unexpected)


async def answer_to(request: Request, error: Exception) -> Response | None:
    """Return what `request` gets for `error`, None where it is none that is expected."""
    for kind in type(error).__mro__:
        if kind in _HANDLERS:
            return await _HANDLERS[kind](request, error)
    return None


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    set_failure(request.scope, error)
    return error_response(error)


async def _setting_error(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(str(error), code="invalid_configuration"), status_code=400)


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    return JSONResponse(error_body(f"`{param}`: {first['msg'].lower()}", param=param), status_code=400)


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, headers = str(error.detail).lower(), error.headers
    if error.status_code == 404:
        message = f"no route `{request.url.path}`; see /docs for the routes of this server"
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        headers = {**(headers or {}), "Allow": allowed}
        message = f"`{request.url.path}` takes {allowed}, not {request.method}; see /docs for the routes of this server"
    return JSONResponse(error_body(message, status=error.status_code), error.status_code, headers=headers)


def _methods(request: Request) -> list[str]:
    """Return what the request's path takes by all of its routes: starlette names the first one's methods alone."""
    scope = {key: request.scope[key] for key in ("type", "path", "root_path", "headers")}
    return [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


_HANDLERS: dict[type, Callable[[Request, Exception], Awaitable[Response]]] = {
    RequestError: _request_error,
    SglkError: _setting_error,
    RequestValidationError: _validation_error,
    HTTPException: _http_exception,
    ClientDisconnect: _client_left,
}


async def _unexpected(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed: %s", request.method, request.url.path, error)
    message = f"internal error ({type(error).__name__}); the server's log has the details"
    # This answer is made outside of all layers, also of the one that adds the id to others.
    headers = {} if (request_id := current_request_id()) is None else {HEADER.decode(): request_id}
    return JSONResponse(error_body(message, status=500, code="internal_error"), status_code=500, headers=headers)
