"""Server-sent events and what happens when the client leaves before the answer is complete."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sglk.errors import RequestError
from sglk.server.counting import set_failure, set_outcome
from sglk.server.errors import error_body
from sglk.server.interruption import Interruption
from sglk.server.request_record import current_request_id

T = TypeVar("T")

WATCH_AFTER_S = 0.05
"""When it is first looked whether the client is still there: most short answers are complete by then."""

DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dump(value: Any) -> str:
    """Return `value` as compact strict JSON."""
    return _encode(value)


def event(value: Any) -> bytes:
    """Return `value` as one server-sent event."""
    return f"data: {_encode(value)}\n\n".encode()


def failure_event(scope: Scope, error: RequestError) -> bytes:
    """Return the event that ends a stream in place of DONE: nobody shall take its answer for a complete one.

    It names the request, as the headers are long gone by then.
    """
    set_failure(scope, error)
    body = error_body(str(error), status=error.status, param=error.param, code=error.code)
    return event({**body, "request_id": current_request_id()})


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; when the client disconnects first, cancel it and raise ClientDisconnect.

    The request body must have been read: from then on the server's `receive` only reports the disconnect.
    """
    with _Departure(receive):
        return await work


class _Departure(Interruption):
    """Ends what the current task waits for when the client leaves."""

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> "_Departure":
        super().__enter__()
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch)
        return self

    def _watch(self) -> None:
        self._watcher = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end_by(ClientDisconnect())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        super().__exit__(kind, error, trace)


class EventStream(Response):
    """Sends `events` as they come and closes `source` at the end, however it comes about."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], source: AbstractContextManager[Any]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the events end or the client leaves."""
        with self._source:
            try:
                await unless_client_leaves(receive, self._stream(send))
            except ClientDisconnect:
                set_outcome(scope, "aborted")

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._events:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
