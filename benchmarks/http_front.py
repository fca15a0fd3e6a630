"""What the server takes besides the model: plain requests and streamed tokens a second, where the model costs nothing.

The server is `benchmarks.null_server`: tokenising, scheduling, detokenising and HTTP are done, the model is not. The
client writes prepared bytes and looks only for where answers end; it has the same two cores, so its own processor time
is told too. Beside the rates, which want quiet cores, stands the processor time of the server, which neighbours change
less.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.result import Row, main
from sglk.bench.target import READY_LINE
from sglk.child import ChildProcess

PLAIN_BAR = 1500.0
STREAMED_BAR = 20_000.0
CONNECTIONS = 64
STREAM_TOKENS = 128
WORDS = (
    "chip=cpu",
    "model=smollm2",
    "profiles=none",
    "server.host=127.0.0.1",
    "server.port=0",
    f"runtime.max_running_requests={2 * CONNECTIONS}",
)
PROMPT = "Once upon a time there was a river that knew every village on its way to the sea."
LAST_CHUNK = b"0\r\n\r\n"
START_S = 60.0


def measure(quick: bool) -> list[Row]:
    """Serve each kind of request over and over on as many connections as a busy gateway has."""
    plain, streams = (2000, 4 * CONNECTIONS) if quick else (15_000, 32 * CONNECTIONS)
    command = [sys.executable, "-u", "-m", "benchmarks.null_server", *WORDS]
    with (
        tempfile.TemporaryDirectory() as folder,
        ChildProcess(command, log=Path(folder) / "log", label="the server") as server,
    ):
        url = json.loads(server.wait_for_line(READY_LINE, timeout_s=START_S).group(1))["url"]
        return asyncio.run(_rates(url, server.pid, plain, streams))


async def _rates(url: str, pid: int, plain: int, streams: int) -> list[Row]:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    clients = [await Client.connect(address.hostname, address.port) for _ in range(CONNECTIONS)]
    once = _request({"prompt": PROMPT, "max_tokens": 1, "temperature": 0})
    long = _request({"prompt": PROMPT, "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True})
    rows = []
    for name, unit, tokens, bar, count, ask in (
        ("plain request", "req/s", 1, PLAIN_BAR, plain, lambda client: client.plain(once)),
        ("streamed token", "tok/s", STREAM_TOKENS, STREAMED_BAR, streams, lambda client: client.stream(long)),
    ):
        await _all(clients, 2 * CONNECTIONS, ask)
        wall_s, server_s, client_s = (each / count / tokens for each in await _timed(pid, _all(clients, count, ask)))
        rows += [
            Row(f"{name}s, {CONNECTIONS} connections", 1 / wall_s, unit, "bar, at least", bar),
            Row(f"server's processor time per {name}", server_s * 1e6, "us"),
            Row(f"client's processor time per {name}", client_s * 1e6, "us"),
        ]
    for client in clients:
        client.close()
    return rows


def _request(body: dict[str, object]) -> bytes:
    content = json.dumps({"model": "smollm2", **body}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    return head.encode() + b"\r\n\r\n" + content


async def _all(clients: list["Client"], count: int, ask: Callable[["Client"], Awaitable[None]]) -> None:
    """Ask `count` times, each client one question after the other."""
    numbers = iter(range(count))

    async def keep_asking(client: Client) -> None:
        for _ in numbers:
            await ask(client)

    await asyncio.gather(*map(keep_asking, clients))


async def _timed(pid: int, work: Awaitable[None]) -> tuple[float, float, float]:
    """Return the time that passes, that which the server computes, and that which this client does, in seconds."""
    start, server, client = time.perf_counter(), _cpu_s(pid), time.process_time()
    await work
    return time.perf_counter() - start, _cpu_s(pid) - server, time.process_time() - client


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and of those that it started, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    started = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    own_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(_cpu_s(int(child)) for child in started)


class Client:
    """A connection that is kept alive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, host: str, port: int) -> "Client":
        """Return an open connection."""
        return cls(*await asyncio.open_connection(host, port, limit=2**20))

    async def plain(self, request: bytes) -> None:
        """Ask, and read an answer whose length its head tells."""
        self._writer.write(request)
        head = await self._head()
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.partition(b":")[2]))

    async def stream(self, request: bytes) -> None:
        """Ask, and read an answer in chunks to its end."""
        self._writer.write(request)
        await self._head()
        rest = b""
        while not rest.endswith(LAST_CHUNK):
            more = await self._reader.read(2**16)
            if not more:
                raise ConnectionError("the server closed the connection within an answer")
            rest = rest[-len(LAST_CHUNK) :] + more

    async def _head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(f"the server answered {head!r}")
        return head

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


if __name__ == "__main__":
    raise SystemExit(main("http_front", measure))
