"""Web pages of other sites may not use a browser to command the server."""

from collections.abc import Mapping
from contextlib import suppress
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

_ALWAYS_SENT = (b"origin", b"accept-language", b"sec-fetch-")
"""Beginnings of headers that browsers add; a page can change the second one and the user agent, but drop none."""

_SHOWN_CHARACTERS = 80


class SameOrigin:
    """ASGI middleware that refuses what another site's page sends without a key (403).

    A browser sends a page's simple POST to any address, that of a server on the reader's own machine included; it
    names the page's site as `Origin`. A request with a key is no such one: pages cannot add one to simple requests.
    What the server asks a key for is left to `BearerAuth`: no page has it.

    Where only this machine reaches the server (`local`), a page must also have come from it by a name that is its own:
    any other name may have been pointed at this machine by its owner (DNS rebinding). Such a page may not read either;
    its browser sends no `Origin` then, so the name that was asked for must do. It can send any key, which nobody looks
    at where none is needed.
    """

    def __init__(self, app: ASGIApp, server: ServerConfig) -> None:
        self.app = app
        self._server = server
        self._allowed = frozenset(server.cors_origins)
        # Without ports: a proxy may pass on the name alone.
        self._listed_names = frozenset(_name_in(origin.partition("://")[2]) for origin in server.cors_origins)
        self._local = is_loopback(server.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on unless it is another site's."""
        if scope["type"] == "http" and (why := self._objection(scope)) is not None:
            await error_response(RequestError(why, code="foreign_origin", status=403))(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _objection(self, scope: Scope) -> str | None:
        """Return why the request is refused; None = it is not."""
        headers = dict(scope["headers"])
        origin, host = (headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
        if origin in self._allowed or takes_key(self._server, scope["path"]):
            return None
        if self._local and _of_browser(headers) and not (self._is_known(host) or scope["path"] in OPEN_PAGES):
            return (
                f"a browser asked this server for {host[:_SHOWN_CHARACTERS]!r}, which may be another site's name; ask"
                " for `localhost` or an address, or list the site in server.cors_origins"
            )
        if not _changes_something(scope) or b"authorization" in headers or self._is_own_page(headers, origin, host):
            return None
        return (
            "a page of another web site may not send this; use a client that is no browser, or list the site in"
            " server.cors_origins"
        )

    def _is_own_page(self, headers: Mapping[bytes, bytes], origin: str, host: str) -> bool:
        if not origin:
            return headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        # `null`, the origin of a sandboxed frame or a file, has no host.
        return _is_host(origin, host) and (not self._local or _is_own_name(_name_in(host)))

    def _is_known(self, host: str) -> bool:
        """Say whether no stranger can have pointed the name here: one that is listed, an address, or without a dot."""
        name = _name_in(host)
        return name in self._listed_names or "." not in name or _is_own_name(name)


def _of_browser(headers: Mapping[bytes, bytes]) -> bool:
    # Others may pass on any name, such as a proxy's, and run no code of strangers.
    return headers.get(b"user-agent", b"").startswith(b"Mozilla/") or any(
        name.startswith(_ALWAYS_SENT) for name in headers
    )


def _changes_something(scope: Scope) -> bool:
    return scope["method"] not in _SAFE or scope["path"] in READ_BUT_UNSAFE


def _is_host(origin: str, host: str) -> bool:
    return bool(host) and origin.partition("://")[2].lower() == host.lower()


def _name_in(host: str) -> str:
    """Return the name or address in `name:port`, in small letters; all of it where it is no such thing."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host


def _is_own_name(name: str) -> bool:
    """Say whether the name means the machine that asks (RFC 6761), or is an address, which nobody can point."""
    with suppress(ValueError):
        return bool(ip_address(name))
    return name.removesuffix(".").rpartition(".")[2] == "localhost"
