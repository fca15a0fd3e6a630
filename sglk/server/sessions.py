"""Which conversation a request belongs to."""

from starlette.requests import Request

from sglk.server.body import Body
from sglk.server.entry import entry_of
from sglk.server.headers import header_of


def session_header(request: Request) -> str | None:
    """Return what the request has in `router.session_header`."""
    given = header_of(request.scope, entry_of(request).session_header)
    return None if given is None else given.decode("latin-1")


def session_of(request: Request, body: Body) -> str | None:
    """Return what keeps the request on the device group of those before it: `router.session_header`, else `user`."""
    given = session_header(request)
    if given:
        return given
    user = (body.model_extra or {}).get("user")
    return user if isinstance(user, str) and user else None
