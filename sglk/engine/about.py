"""Which requests the engine is at work on, for the lines that are logged meanwhile."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Named(Protocol):
    """A request, or what stands for one."""

    @property
    def request_id(self) -> str:
        """What the engine calls the request."""


_REQUESTS: ContextVar[Sequence[Named]] = ContextVar("sglk_at_work_on", default=())


@contextmanager
def about(requests: Sequence[Named]) -> Iterator[None]:
    """Let what this thread logs in the block be about `requests`; their names are read only when it does."""
    token = _REQUESTS.set(requests)
    try:
        yield
    finally:
        _REQUESTS.reset(token)


def requests_at_work() -> list[str]:
    """Return the ids of the requests that the calling thread is at work on."""
    return [request.request_id for request in _REQUESTS.get()]
