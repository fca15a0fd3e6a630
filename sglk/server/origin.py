"""Web pages of other sites may not use a browser to command the server."""

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from sglk.config.schema import ServerConfig
from sglk.errors import RequestError
from sglk.server.auth import takes_key
from sglk.server.errors import error_response
from sglk.server.port import is_loopback

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

READ_BUT_UNSAFE = frozenset({"/flush_cache"})
"""Routes that change something though they are asked by GET."""

OPEN_PAGES = frozenset({"/dashboard", "/health"})
"""What tells nobody anything: the page without its figures, and that the server lives."""


class SameOrigin:
    """ASGI middleware that refuses what another site's page sends without a key (403).

    A browser sends a page's simple POST to any address, that of a server on the reader's own machine included; it
    names the page's site as `Origin`. A request with a key is no such one: pages cannot add one to simple requests.

    Where only this machine reaches the server (`local`), a page must also have come from it by a name that is its own:
    any other name may have been pointed at this machine by its owner (DNS rebinding). Such a page may not read either;
    its browser sends no `Origin` then, so the name that was asked for must do. It can send any key, which nobody looks
    at where none is needed.
    """

    def __init__(self, app: ASGIApp, server: ServerConfig) -> None:
        self.app = app
        self._server = server
        self._allowed = frozenset(server.cors_origins)
        self._listed_hosts = frozenset(origin.partition("://")[2] for origin in server.cors_origins)
        self._local = is_loopback(server.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on unless it is another site's."""
        if scope["type"] == "http" and not self._trusts(scope):
            message = (
                "a page of another web site may not send this; use a client that is no browser, send the server's key,"
                " or list the site in server.cors_origins"
            )
            await error_response(RequestError(message, code="foreign_origin", status=403))(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _trusts(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        origin, host = (headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
        with_key = b"authorization" in headers
        if origin in self._allowed or (with_key and takes_key(self._server, scope["path"])):
            return True
        if self._local and _of_browser(headers) and not (self._is_known(host) or scope["path"] in OPEN_PAGES):
            return False
        if with_key or not _changes_something(scope):
            return True
        if b"origin" not in headers:
            return headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        # `null`, the origin of a sandboxed frame or a file, has no host.
        return _is_host(origin, host) and (not self._local or _is_own_name(origin))

    def _is_known(self, host: str) -> bool:
        """Say whether no stranger can have pointed the name here: one that is listed, an address, or without a dot."""
        name = host.rpartition(":")[0] or host
        return host in self._listed_hosts or "." not in name or _is_own_name(f"http://{host}")


def _of_browser(headers: Mapping[bytes, bytes]) -> bool:
    # Others may pass on any name, such as a proxy's, and run no code of strangers.
    return headers.get(b"user-agent", b"").startswith(b"Mozilla/")


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
