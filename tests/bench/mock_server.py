"""A server of HTTP over raw sockets, so that tests decide about every byte and every read."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any


@dataclass
class Call:
    """One request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    number: int
    """How many requests to the same path came before it."""


@dataclass
class Reply:
    """The answer to one call."""

    writer: asyncio.StreamWriter
    dropped: bool = False

    async def json(self, body: object, status: int = 200) -> None:
        """Answer at once with a JSON body."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.writer.write(_head(status, f"content-length: {len(text)}") + text)
        await self.writer.drain()

    async def start(self) -> None:
        """Begin a stream."""
        self.writer.write(_head(200, "content-type: text/event-stream", "transfer-encoding: chunked"))
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        """Send `data` so that the client reads it in one piece."""
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def end(self) -> None:
        """End the stream in order."""
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def stream(self, chunks: list[bytes]) -> None:
        """Send a whole stream."""
        await self.start()
        for chunk in chunks:
            await self.chunk(chunk)
        await self.end()

    def drop(self) -> None:
        """Cut the connection."""
        self.dropped = True
        self.writer.transport.abort()


Answer = Callable[[Call, Reply], Awaitable[None]]


@dataclass
class MockServer:
    """Answers generation by `answer`, other paths by `handlers` or `routes` (JSON, or bytes); 404 for the rest."""

    answer: Answer
    routes: dict[str, object] = field(default_factory=dict)
    handlers: dict[str, Answer] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.calls: list[Call] = []
        self._counts: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def paths(self) -> list[str]:
        return [call.path for call in self.calls]

    def sent(self, path: str) -> list[Any]:
        """Bodies that came to `path`, in order."""
        return [call.body for call in self.calls if call.path == path]

    def __enter__(self) -> "MockServer":
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self._port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (call := await self._read(reader)) is not None:
                reply = Reply(writer)
                await self._reply(call, reply)
                if reply.dropped:
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> Call | None:
        first = (await reader.readline()).decode().split()
        if not first:
            return None
        headers: dict[str, str] = {}
        while line := (await reader.readline()).decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path = first[0], first[1]
        number = self._counts.get(path, 0)
        self._counts[path] = number + 1
        call = Call(method, path, headers, json.loads(data) if data else None, number)
        self.calls.append(call)
        return call

    async def _reply(self, call: Call, reply: Reply) -> None:
        if call.path in self.handlers:
            await self.handlers[call.path](call, reply)
        elif call.path in self.routes:
            await reply.json(self.routes[call.path])
        elif call.path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            await self.answer(call, reply)
        else:
            await reply.json({"detail": "Not Found"}, 404)


def _head(status: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} {'OK' if status == 200 else 'Nothing'}", *headers, "", ""]).encode()
