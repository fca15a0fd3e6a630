"""Request bodies: size limit, strict JSON, and messages that name the field and what it takes."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from sglk.errors import RequestError
from sglk.server.entry import entry_of
from sglk.server.headers import header_of
from sglk.server.interruption import Interruption

MAX_BODY_BYTES = 32 * 2**20
"""Larger bodies get 413; a million tokens as a JSON list take about 7 MB."""

MAX_ENTRIES = 2**16
"""Most prompts, messages and the like in one list; token ids are bounded by the size of the body."""

PAUSE_S = 30.0
"""Longest wait for the next piece of a body; a client that keeps silent for longer gets 408."""

WHOLE_S = 300.0
"""Longest wait for all of it."""

_SHOWN_CHARACTERS = 60

ItemT = TypeVar("ItemT")

# Without `fail_fast` a body of many wrong entries makes an error of each, once per branch of a union.
Listed = Annotated[list[ItemT], Field(max_length=MAX_ENTRIES, fail_fast=True)]
TokenIdList = Annotated[list[int], Field(fail_fast=True)]


class Body(BaseModel):
    """A JSON request body.

    Types are strict ("10" and true are no numbers, 1.5 is no whole number), NaN and infinities are refused, null
    means the default, and fields that the server does not know are ignored, as OpenAI's own API does. Each field's
    description completes the sentence "`field` must be ...", in error messages and in the API documentation alike.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


BodyT = TypeVar("BodyT", bound=Body)


async def read_body(request: Request, shape: type[BodyT]) -> BodyT:
    """Return the body of `request` as a `shape`; raises RequestError for anything else."""
    raw = await read_limited(request)
    if not raw.strip():
        raise RequestError("the request body is empty; send a JSON object", code="empty_body")
    try:
        return shape.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error, shape) from None


async def read_object(request: Request) -> dict[str, Any]:
    """Return the body of `request` as a plain JSON object."""
    return dict((await read_body(request, Body)).model_extra or {})


NESTED: dict[str, Any] = {}
"""Schemas of the objects inside of bodies, by name, as the descriptions of bodies refer to them."""


def body_schema(shape: type[Body], *, required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a route that takes a `shape`, for `openapi_extra`."""
    schema = shape.model_json_schema(ref_template="#/components/schemas/{model}")
    NESTED.update(schema.pop("$defs", {}))
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def refuse_unsupported(body: Body, neutral: Mapping[str, tuple[Any, ...]], within: str = "") -> None:
    """Refuse features that the server lacks: fields named in `neutral`, unless null or one of the listed values.

    Such a field must not be ignored in silence, since the answer would not be what was asked for. `within` stands
    before the names.
    """
    for name, value in (body.model_extra or {}).items():
        if name not in neutral or value is None:
            continue
        if not any(
            value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in neutral[name]
        ):
            param = f"{within}{name}"
            message = f"`{param}` is not supported by this server; leave it out"
            raise RequestError(message, param=param, code="unsupported_parameter")


async def read_limited(request: Request) -> bytes:
    """Return the body as it is, within the limits of size and time."""
    declared = header_of(request.scope, b"content-length") or b""
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    with _Pieces(request) as pieces:
        while pieces.more:
            chunk = await pieces.next()
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise _too_large()
            chunks.append(chunk)
    return b"".join(chunks)


class _Pieces(Interruption):
    """The body of a request as it comes, until no more comes in time, or the server is about to end (RequestError)."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._receive = request.receive
        self._cut_off = entry_of(request).cut_off
        self._loop = asyncio.get_running_loop()
        self._over_s = self._loop.time() + WHOLE_S
        self.more = True
        """Whether there is more to come."""

    def __enter__(self) -> "_Pieces":
        super().__enter__()
        self._cut_off.waiting.add(self._end_now)
        return self

    async def next(self) -> bytes:
        """Return the next piece, which may be empty."""
        if self._cut_off.over:
            raise _shutting_down()
        late = self._loop.call_at(min(self._loop.time() + PAUSE_S, self._over_s), self._end_late)
        try:
            message = await self._receive()
        finally:
            late.cancel()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self.more = message.get("more_body", False)
        return bytes(message.get("body", b""))

    def _end_now(self) -> None:
        self.end_by(_shutting_down())

    def _end_late(self) -> None:
        message = f"no more of the request body came within {PAUSE_S:g} s, or not all within {WHOLE_S:g} s; send it all"
        self.end_by(RequestError(message, code="body_incomplete", status=408))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cut_off.waiting.discard(self._end_now)
        super().__exit__(kind, error, trace)


def _shutting_down() -> RequestError:
    message = "the server shuts down and the request body is not complete; send it to another server"
    return RequestError(message, code="shutting_down", status=503)


def _too_large() -> RequestError:
    message = f"the request body is larger than {MAX_BODY_BYTES // 2**20} MiB; send a shorter prompt or fewer at once"
    return RequestError(message, code="body_too_large", status=413)


def _refusal(error: ValidationError, shape: type[Body]) -> RequestError:
    details = error.errors(include_url=False)[0]
    if details["type"] == "json_invalid":
        reason = details["ctx"]["error"]
        return RequestError(f"the request body is not valid JSON: {reason}", code="invalid_json")
    if not details["loc"]:
        return RequestError("the request body must be a JSON object", code="invalid_type")
    names, description = _locate(details, shape)
    param = ".".join(names)
    if details["type"] == "missing":
        return RequestError(f"`{param}` is missing; it must be {description}", param=param, code="missing_parameter")
    given = _shown(details["input"])
    return RequestError(f"`{param}` must be {description}, got {given}", param=param, code="invalid_value")


def _shown(value: Any) -> str:
    """Return the beginning of `value` as JSON, without writing all of it."""
    pieces = json.JSONEncoder(default=str).iterencode(value)
    text = "".join(islice(pieces, _SHOWN_CHARACTERS + 1))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _locate(details: ErrorDetails, shape: type[Body]) -> tuple[list[str], str]:
    """Return the field names on the way to the error, without union tags, and the innermost field's description."""
    names: list[str] = []
    description = "valid"
    model: type[BaseModel] | None = shape
    for part in details["loc"]:
        if model is None or part not in model.model_fields:
            continue
        field = model.model_fields[str(part)]
        names.append(str(part))
        description = field.description or description
        model = next(_models_in(field.annotation), None)
    return names or [str(details["loc"][0])], description


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
