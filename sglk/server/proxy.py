"""Routes that are answered by engines elsewhere: the request goes to one of them, and its answer back, as they are."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sglk.engine.messages import Finish, Output
from sglk.errors import RequestError
from sglk.server.answers import raise_if_failed
from sglk.server.body import read_limited
from sglk.server.bridge import Generation
from sglk.server.choices import new_id
from sglk.server.counting import set_outcome
from sglk.server.errors import error_body
from sglk.server.gateway import gateway_of
from sglk.server.request_record import current_request_id
from sglk.server.sessions import session_header
from sglk.server.streaming import event, unless_client_leaves
from sglk.server.token_ids import require_known
from sglk.upstream.messages import ProxyOutput, ProxyRequest

PROMPT_BYTES = 16384
"""So much of a prompt tells whether its beginning was seen before."""

BAD_GATEWAY = 502

_UNQUOTED = "/:@!$&'()*+,;=~"
"""Of a path, beside letters, digits and `-._`; what else was in it, such as the end of a line, no URL has."""

TYPED_ROUTES = frozenset({"/v1/messages", "/v1/responses"})
"""Their events have names, and clients pass over those without."""

router = APIRouter()


@router.post("/v1/{route:path}")
@router.post("/generate")
@router.post("/tokenize")
@router.post("/detokenize")
@router.get("/v1/models")
@router.get("/v1/models/{name:path}")
@router.get("/model_info")
@router.get("/get_model_info", include_in_schema=False)
async def proxied(request: Request) -> Response:
    """Pass the request on to a device group, and its answer back byte for byte."""
    gateway = gateway_of(request)
    body = await read_limited(request)
    fields = _fields(body)
    if gateway.vocab_size is not None:
        require_known(fields, gateway.vocab_size)
    generation = gateway.bridge.open([_proxy_request(request, body, fields)])
    return ProxiedAnswer(generation)


class ProxiedAnswer(Response):
    """The answer as it comes: status and headers with its first byte, which may be from a second group."""

    def __init__(self, generation: Generation) -> None:
        super().__init__()
        self._generation = generation
        self._begun = False
        self._events = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay until the answer ends or the client leaves, which ends it at the engine as well."""
        with self._generation:
            try:
                await unless_client_leaves(receive, self._relay(scope, send))
            except ClientDisconnect:
                set_outcome(scope, "aborted")

    async def _relay(self, scope: Scope, send: Send) -> None:
        try:
            async for output in _outputs(self._generation):
                if isinstance(output, ProxyOutput) and (output.data or output.finish):
                    await self._pass_on(output, send)
        except RequestError as error:
            if not self._begun:
                raise
            set_outcome(scope, "aborted" if error.code == "aborted" else "failed")
            # No [DONE]: nobody shall take the answer for a complete one. What was begun of an event ends first.
            told = _error_event(scope["path"], error_body(str(error), status=error.status, code=error.code))
            await _send(send, b"\n\n" + told if self._events else b"")
        await _send(send, b"", more=False)

    async def _pass_on(self, output: ProxyOutput, send: Send) -> None:
        if not self._begun:
            self._begun = True
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in output.headers]
            self._events = any(name == b"content-type" and b"text/event-stream" in value for name, value in headers)
            if not self._events:
                headers.append((b"content-length", str(len(output.data)).encode()))
            await send({"type": "http.response.start", "status": output.status, "headers": headers})
        if output.data:
            await _send(send, output.data)


async def _outputs(generation: Generation) -> AsyncIterator[Output]:
    """Yield the outputs; raises RequestError for a failed one, but for what the engine itself refused."""
    async for batch in generation.batches():
        for _, output in batch:
            refused = isinstance(output, ProxyOutput) and output.status >= 400 and output.finish and output.finish.code
            if not refused:
                _raise_if_lost(output.finish)
                raise_if_failed(output.finish)
            yield output


def _raise_if_lost(finish: Finish | None) -> None:
    """Raise RequestError for an answer that no server gave, or not to its end."""
    if finish is not None and finish.reason == "error" and finish.code is None:
        raise RequestError(finish.message or "no answer", code="engine_error", status=BAD_GATEWAY)


def _error_event(path: str, body: Mapping[str, Any]) -> bytes:
    """Return the last event of a stream that failed, in a form that clients of its API take for one."""
    if path in TYPED_ROUTES:
        return b"event: error\n" + event({"type": "error", **body})
    return event(body)


async def _send(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def _proxy_request(request: Request, body: bytes, fields: Mapping[str, Any]) -> ProxyRequest:
    user = fields.get("user")
    query = f"?{request.url.query}" if request.url.query else ""
    return ProxyRequest(
        new_id("proxy"),
        tuple(_beginning(fields)),
        session=session_header(request) or (user if isinstance(user, str) and user else None),
        method=request.method,
        path=f"{quote(request.scope['path'], safe=_UNQUOTED)}{query}",
        headers=tuple(_headers(request)),
        body=body,
    )


def _headers(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the client's headers; the request's id is the same on both sides."""
    yield from ((name, value) for name, value in request.headers.items() if name != "x-request-id")
    if (own := current_request_id()) is not None:
        yield "x-request-id", own


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}  # for the engine to refuse
    return fields if isinstance(fields, dict) else {}


def _beginning(fields: Mapping[str, Any]) -> bytes:
    """Return the first bytes of the prompt, in whatever form it is."""
    prompt = next((fields[name] for name in ("messages", "prompt", "text", "input_ids", "input") if name in fields), "")
    return json.dumps(prompt).encode()[:PROMPT_BYTES]
