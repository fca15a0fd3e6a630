"""Bearer keys: one for the API, one for the routes that change the server."""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from sglk.config.schema import ServerConfig
from sglk.errors import RequestError
from sglk.server.errors import error_response
from sglk.server.headers import header_of

OPEN_ROUTES = frozenset({"/health", "/health_generate", "/metrics", "/dashboard"})
"""Probes and scrapers carry no keys, and a browser has none yet when it loads the page, which shows nothing itself."""

EITHER_ROUTES = frozenset({"/dashboard/events"})
"""Who may use the API or administer the server may look at it."""

ADMIN_ROUTES = ("/admin/", "/flush_cache", "/reset_prefix_cache")
"""Prefixes of the routes that take the admin key."""


def takes_key(server: ServerConfig, path: str) -> bool:
    """Return whether a request of `path` with a wrong key, or none, is refused."""
    if path in OPEN_ROUTES:
        return False
    return server.api_key is not None or (server.admin_api_key is not None and path.startswith(ADMIN_ROUTES))


class BearerAuth:
    """ASGI middleware that refuses requests without the right `Authorization: Bearer` key (401)."""

    def __init__(self, app: ASGIApp, api_key: str | None, admin_api_key: str | None, local: bool = True) -> None:
        """Guard `app`; with no key at all its admin routes are open where only this machine reaches it (`local`)."""
        self.app = app
        self._local = local
        self._api_key = api_key
        self._admin_key = admin_api_key or api_key
        self._admin_name = "server.admin_api_key" if admin_api_key else "server.api_key"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on when its key fits."""
        if scope["type"] == "http" and not self._admits(scope):
            await error_response(self._refusal(scope["path"]))(scope, receive, send)
            return
        if scope["type"] == "http" and not self._local and self._admin_key is None and _is_guarded(scope):
            await error_response(_closed())(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        path = scope["path"]
        if path in OPEN_ROUTES:
            return True
        if path in EITHER_ROUTES:
            return self._fits(scope, self._api_key) or self._fits(scope, self._admin_key)
        return self._fits(scope, self._admin_key if path.startswith(ADMIN_ROUTES) else self._api_key)

    def _fits(self, scope: Scope, key: str | None) -> bool:
        return key is None or hmac.compare_digest(_given_key(scope), key.encode())

    def _refusal(self, path: str) -> RequestError:
        names = [self._admin_name] if path.startswith((*ADMIN_ROUTES, *EITHER_ROUTES)) else []
        names += [] if path.startswith(ADMIN_ROUTES) else ["server.api_key"]
        name = " or ".join(dict.fromkeys(names))
        message = f"the API key is missing or wrong; send `Authorization: Bearer KEY` with the server's key ({name})"
        return RequestError(message, code="invalid_api_key", status=401)


def _is_guarded(scope: Scope) -> bool:
    """Whether strangers could move or stop traffic by it; an emptied cache costs them no more than their requests."""
    return bool(scope["path"].startswith("/admin/"))


def _closed() -> RequestError:
    message = (
        "the admin routes are closed, since other machines reach this server and it has no key; start it with"
        " server.admin_api_key_file=FILE or $SGLK_ADMIN_API_KEY set, and send `Authorization: Bearer KEY`"
    )
    return RequestError(message, code="admin_closed", status=403)


def _given_key(scope: Scope) -> bytes:
    scheme, _, key = (header_of(scope, b"authorization") or b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
