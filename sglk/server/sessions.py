"""Which conversation a request belongs to."""

from starlette.requests import Request

from sglk.server.body import Body
from sglk.server.entry import entry_of


def session_of(request: Request, body: Body) -> str | None:
    """Return what keeps the request on the device group of those before it: `router.session_header`, else `user`."""
    given = request.headers.get(entry_of(request).config.router.session_header)
    if given:
        return given
    user = getattr(body, "user", None)
    return user if isinstance(user, str) and user else None
