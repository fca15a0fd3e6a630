"""Headers of requests as ASGI has them."""

from starlette.types import Scope


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of that lower-case name, None where there is none."""
    for given, value in scope["headers"]:
        if given == name:
            return bytes(value)
    return None
