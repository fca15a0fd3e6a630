"""From the engine's thread to asyncio: who waits for which request, with one hand-over per engine step."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Protocol

from sglk.engine.messages import Finish, GenerateRequest, Output
from sglk.errors import RequestError
from sglk.server.latency import LatencyMetrics, RequestClock
from sglk.server.request_record import current_record, follow, forget

TIMED_OUT = "request_timeout"
"""Code of an answer that took too long."""

Numbered = tuple[int, Output]
"""An output and the position of its request in the generation."""


class Generator(Protocol):
    """What the bridge needs of an engine."""

    def submit(self, request: GenerateRequest, on_output: Callable[[Output], None]) -> None:
        """Queue `request`; `on_output` is called from the engine's thread."""

    def abort(self, request_id: str) -> None:
        """End a request early; unknown ids are ignored."""


class EngineBridge:
    """One engine as the event loop sees it.

    `limit` is the most requests that may be open, running and waiting together; one more is refused with 429. What is
    not complete after `request_timeout_s` is aborted, and ends with the error `request_timeout`.
    """

    def __init__(
        self, engine: Generator, limit: int, latency: LatencyMetrics, request_timeout_s: float | None = None
    ) -> None:
        self.limit = limit
        self._timeout_s = request_timeout_s
        self._engine = engine
        self._latency = latency
        self._waiting: dict[str, tuple[Generation, int]] = {}
        self._inbox: deque[Output] = deque()
        self._wake_up_pending = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def open_requests(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._waiting)

    def open(self, requests: Sequence[GenerateRequest]) -> "Generation":
        """Submit `requests` together; raises RequestError when the engine refuses one or too many are open."""
        self._check_room(len(requests))
        self._loop = asyncio.get_running_loop()
        generation = Generation(self, [request.request_id for request in requests])
        if (record := current_record()) is not None:
            follow(record, generation.request_ids, generation.clocks)
        try:
            for index, request in enumerate(requests):
                self._waiting[request.request_id] = (generation, index)
                generation.clocks.append(self._latency.start())
                self._engine.submit(request, self._from_engine)
        except BaseException:
            generation.close()
            raise
        if self._timeout_s is not None:
            generation.end_after(self._timeout_s)
        return generation

    def abort_all(self) -> None:
        """Ask the engine to end every open request; their streams then end with finish reason `abort`."""
        for request_id in list(self._waiting):
            self._engine.abort(request_id)

    def forget(self, request_id: str) -> bool:
        """Drop a request and, if it still runs, end it in the engine; returns whether it did."""
        if self._waiting.pop(request_id, None) is None:
            return False
        self._engine.abort(request_id)
        return True

    def _check_room(self, count: int) -> None:
        if count > self.limit:
            raise RequestError(f"{count} answers in one request, the server takes at most {self.limit}", param="n")
        if self.open_requests + count > self.limit:
            message = (
                f"{self.open_requests} requests are running or waiting, the limit is {self.limit}; try again later"
            )
            raise RequestError(message, code="queue_full", status=429)

    def _from_engine(self, output: Output) -> None:
        """Runs in the engine's thread: all outputs of a step share one wake-up of the loop."""
        self._inbox.append(output)
        if not self._wake_up_pending:
            self._wake_up_pending = True
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Cleared first: an output appended from here on either is seen below or schedules the next wake-up.
        self._wake_up_pending = False
        while self._inbox:
            output = self._inbox.popleft()
            waiting = self._waiting.get(output.request_id)
            if waiting is None:
                continue
            if output.finish is not None:
                del self._waiting[output.request_id]
            waiting[0].receive(waiting[1], output)


class Generation:
    """The outputs of requests that were submitted together; a context manager that aborts what is left unfinished."""

    def __init__(self, bridge: EngineBridge, request_ids: list[str]) -> None:
        self.request_ids = request_ids
        self.clocks: list[RequestClock] = []
        self._bridge = bridge
        self._unfinished = len(request_ids)
        self._arrived: list[Numbered] = []
        self._news = asyncio.Event()
        self._end: asyncio.TimerHandle | None = None

    def receive(self, index: int, output: Output) -> None:
        """Take an output of request number `index`; runs in the event loop."""
        self.clocks[index].tick(output)
        self._arrived.append((index, output))
        self._news.set()

    def end_after(self, timeout_s: float) -> None:
        """Give the requests so long; what has not finished by then ends with an error."""
        self._end = asyncio.get_running_loop().call_later(timeout_s, self._time_out, timeout_s)

    def _time_out(self, timeout_s: float) -> None:
        message = f"the answer was not complete within {timeout_s:g} s (server.request_timeout_s); ask for less"
        finish = Finish("error", message=message, code=TIMED_OUT)
        for index, request_id in enumerate(self.request_ids):
            if self._bridge.forget(request_id):
                last = self.clocks[index].last
                counts = (0, 0, 0) if last is None else (last.prompt_tokens, last.completion_tokens, last.cached_tokens)
                self.receive(index, Output(request_id, (), "", *counts, finish))

    async def batches(self) -> AsyncIterator[list[Numbered]]:
        """Yield what has arrived since the last time, until every request has finished."""
        while self._unfinished:
            await self._news.wait()
            self._news.clear()
            batch, self._arrived = self._arrived, []
            self._unfinished -= sum(output.finish is not None for _, output in batch)
            yield batch

    def close(self) -> None:
        """Abort the requests that have not finished."""
        if self._end is not None:
            self._end.cancel()
        for request_id in self.request_ids:
            self._bridge.forget(request_id)
        forget(self.request_ids)

    def __enter__(self) -> "Generation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
