"""Web pages of other sites may not use a browser to command the server."""

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from sglk.errors import RequestError
from sglk.server.errors import error_response

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

READ_BUT_UNSAFE = frozenset({"/flush_cache"})
"""Routes that change something though they are asked by GET."""


class SameOrigin:
    """ASGI middleware that refuses what another site's page sends without a key (403).

    A browser sends a page's simple POST to any address, that of a server on the reader's own machine included; it
    names the page's site as `Origin`. A request with a key is no such one: pages cannot add one to simple requests.

    Where only this machine reaches the server (`local`), a page must also have come from it by a name that is its own:
    any other name may have been pointed at this machine by its owner (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str], local: bool) -> None:
        self.app = app
        self._allowed = frozenset(allowed)
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on unless it is another site's."""
        if scope["type"] == "http" and _changes_something(scope) and not self._trusts(scope):
            message = (
                "a page of another web site may not send this; use a client that is no browser, send the server's key,"
                " or list the site in server.cors_origins"
            )
            await error_response(RequestError(message, code="foreign_origin", status=403))(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _trusts(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        if b"authorization" in headers:
            return True
        if b"origin" not in headers:
            return headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        origin, host = (headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
        if origin in self._allowed:
            return True
        # `null`, the origin of a sandboxed frame or a file, has no host.
        return _is_host(origin, host) and (not self._local or _is_own_name(origin))


def _changes_something(scope: Scope) -> bool:
    return scope["method"] not in _SAFE or scope["path"] in READ_BUT_UNSAFE


def _is_host(origin: str, host: str) -> bool:
    return bool(host) and origin.partition("://")[2].lower() == host.lower()


def _is_own_name(origin: str) -> bool:
    try:
        name = urlsplit(origin).hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False
