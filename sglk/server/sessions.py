"""Which conversation a request belongs to."""

from starlette.requests import Request

from sglk.server.body import Body
from sglk.server.entry import entry_of
from sglk.server.headers import header_of


def session_header(request: Request) -> str | None:
    """Return what the request has in `router.session_header`."""
    name = entry_of(request).config.router.session_header.lower().encode()
    given = header_of(request.scope, name)
    return None if given is None else given.decode("latin-1")


def session_of(request: Request, body: Body) -> str | None:
    """Return what keeps the request on the device group of those before it: `router.session_header`, else `user`."""
    given = session_header(request)
    if given:
        return given
    user = getattr(body, "user", None)
    return user if isinstance(user, str) and user else None
