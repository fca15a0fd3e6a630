"""One request on its way to an upstream server and back, byte for byte."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx

from sglk.engine.messages import Finish
from sglk.upstream.events import Events, usage_of
from sglk.upstream.messages import Headers, ProxyOutput, ProxyRequest

CONNECT_TIMEOUT_S = 5.0

IDLE_S = 2.0
"""How long an unused connection is kept; shorter than servers do, so that none is taken that they have just closed."""

EVENTS = "text/event-stream"

INTERNAL_ERROR = 500
"""What a server says of itself when it fails, and of a request that it cannot deal with."""

NOT_IMPLEMENTED = 501
"""What it says of a request that it has no means for, which is no failure."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that are about one connection, and not about what it carries."""

OURS = frozenset({"api-key", "authorization", "cookie", "forwarded", "x-api-key", "x-forwarded-for"})
"""Headers of the client's that are for sglk's server and not for those behind it."""

_SERVERS = frozenset({"date", "server", "x-request-id"})
"""Headers of an answer that sglk's own server writes."""


def open_client(url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    """Return a client for one server, without a limit to open requests: that is the router's business."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=128, keepalive_expiry=IDLE_S)
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits, trust_env=False)


class Relay:
    """Sends a request and gives the answer as outputs, the last one with a finish.

    A whole answer is held until it is complete and an event stream until its first byte, so that another server can
    take over before the client has seen anything. A stream that ends without its last event has failed.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        request: ProxyRequest,
        replica: str,
        pause_s: float,
        doubt: Callable[[], bool],
    ) -> None:
        """Send `request` by `client`; `doubt` is called at a 500, and says whether the request may be to blame."""
        self._client = client
        self._request = request
        self._replica = replica
        self._pause_s = pause_s
        self._doubt = doubt
        self._status = 0
        self._headers: Headers = ()
        self._begun = False
        self._pieces = 0
        self._usage: Mapping[str, Any] = {}

    async def outputs(self) -> AsyncIterator[ProxyOutput]:
        """Yield the answer."""
        request = self._request
        try:
            async with self._client.stream(
                request.method, request.path, content=request.body, headers=_sent(request.headers)
            ) as response:
                self._status = response.status_code
                self._headers = _returned(response.headers)
                if response.status_code < 400 and EVENTS in response.headers.get("content-type", ""):
                    async for output in self._stream(response):
                        yield output
                else:
                    yield await self._whole(response)
        except (httpx.HTTPError, httpx.StreamError) as error:
            yield self._end(Finish("error", message=f"{self._replica}: {str(error) or type(error).__name__}"))

    async def _whole(self, response: httpx.Response) -> ProxyOutput:
        data = b"".join([piece async for piece in response.aiter_raw()])
        if response.status_code >= 500 and response.status_code != NOT_IMPLEMENTED:
            told = " ".join(data[:300].decode(errors="replace").split())
            message = f"{self._replica} answered {response.status_code}: {told}"
            doubtful = response.status_code == INTERNAL_ERROR and self._doubt()
            return self._end(Finish("error", message=message, doubtful=doubtful))
        if response.status_code >= 400:
            # The client is to blame: no breaker opens, and nobody else is asked.
            return self._end(Finish("error", message="refused", code=f"http_{response.status_code}"), data)
        if "content-encoding" not in response.headers:
            self._usage = usage_of(data)
        return self._end(Finish("stop"), data)

    async def _stream(self, response: httpx.Response) -> AsyncIterator[ProxyOutput]:
        pieces, events = response.aiter_raw(), Events()
        while (data := await self._next(pieces)) is not None:
            new = events.feed(data)
            self._pieces += new
            # The first bytes count, as nobody else may answer after them.
            yield self._output((0,) * max(new, not self._begun), data)
            self._begun = True
        complete, self._usage = events.is_complete(self._request.path), events.usage()
        told = f"{self._replica} ended its stream before it was complete"
        yield self._end(Finish("stop") if complete else Finish("error", message=told))

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        # Before the first byte a request may queue for long, which the server's own limit is for.
        limit_s = self._pause_s if self._begun else None
        started_s = time.monotonic()
        try:
            return await asyncio.wait_for(anext(pieces, None), limit_s)
        except asyncio.TimeoutError:
            waited_s = time.monotonic() - started_s
            raise httpx.ReadTimeout(f"its stream has said nothing for {waited_s:.3g} s") from None

    def _output(self, token_ids: tuple[int, ...], data: bytes, finish: Finish | None = None) -> ProxyOutput:
        usage = self._usage
        cached = usage.get("prompt_tokens_details") or {}
        return ProxyOutput(
            self._request.request_id,
            token_ids,
            "",
            _count(usage, "prompt_tokens"),
            _count(usage, "completion_tokens") or self._pieces,
            _count(usage, "cached_tokens") or _count(cached if isinstance(cached, dict) else {}, "cached_tokens"),
            finish,
            replica=self._replica,
            data=data,
            status=self._status,
            headers=self._headers,
        )

    def _end(self, finish: Finish, data: bytes = b"") -> ProxyOutput:
        return self._output((), data, finish)


def _sent(headers: Headers) -> dict[bytes, bytes]:
    """Return the client's headers for the server behind; the answer comes as the client takes it."""
    kept = {name: value for name, value in headers if name not in HOP_BY_HOP and name not in OURS}
    # As bytes, which were read as this: httpx takes no other letters than ASCII's.
    return {
        name.encode("latin-1"): value.encode("latin-1")
        for name, value in {"accept-encoding": "identity", **kept}.items()
    }


def _returned(headers: httpx.Headers) -> Headers:
    return tuple((name, value) for name, value in headers.multi_items() if name not in HOP_BY_HOP | _SERVERS)


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0
