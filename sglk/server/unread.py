"""The rest of a body whose request has been answered: read for the sake of the connection's next request."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

UNREAD_BYTES = 2**20
"""Of a body that nobody wants, such as that of an unknown route; a connection on which more comes is closed."""

UNREAD_S = 30.0
"""How long it may take to come, however it is spread."""


class UnreadBody:
    """Counts and times what comes of such bodies on one connection, and closes it where it is not worth waiting."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._bytes = 0
        self._late: asyncio.TimerHandle | None = None

    def begin(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Wait for the rest of the body of a request with `headers`, unless much would come or, perhaps, nothing."""
        named = dict(headers)
        # Who waits to be told to go on may keep the body, once there is an answer.
        if b"expect" in named or _declared_bytes(named.get(b"content-length", b"0")) > UNREAD_BYTES:
            self._transport.close()
            return
        self._bytes = 0
        self._late = self._loop.call_later(UNREAD_S, self._transport.close)

    def drop(self, size: int) -> None:
        """Count a piece."""
        self._bytes += size
        if self._bytes > UNREAD_BYTES:
            self._transport.close()

    def end(self) -> None:
        """Stop waiting: the body has come to its end, or the connection has; harmless when repeated."""
        if self._late is not None:
            self._late.cancel()
            self._late = None


class EndsUnreadBodies(asyncio.Protocol):
    """Common to both protocols of uvicorn: an UnreadBody for each connection, and a clock that closes an idle one."""

    loop: asyncio.AbstractEventLoop
    timeout_keep_alive: int
    timeout_keep_alive_task: asyncio.TimerHandle | None
    timeout_keep_alive_handler: Callable[[], None]
    _unread: UnreadBody

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._unread = UnreadBody(transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._unread.end()
        super().connection_lost(exc)

    def _keep_alive(self) -> None:
        """Close the idle connection after a while."""
        # What came has stopped uvicorn's clock, also when it was the rest of a request that is answered.
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )


def _declared_bytes(length: bytes) -> int:
    with suppress(ValueError):
        return int(length)
    return 0
