"""The description at `/openapi.json`: what FastAPI finds, with error bodies, streams and nested bodies as they are."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from fastapi import FastAPI

from sglk.server.body import NESTED

_JSON, _TEXT, _EVENTS = "application/json", "text/plain", "text/event-stream"

STREAMING = ("/v1/completions", "/v1/chat/completions", "/generate")
"""Routes that answer with events where `stream` is set."""

TEXTS = ("/metrics", "/flush_cache")
"""Routes that answer in plain text."""

PROBES = ("/health", "/health_generate")

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "what was given, what is allowed, what to do"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "the field to blame"},
                "code": {"type": ["string", "null"], "description": "short reason for programs"},
            },
        }
    },
}
"""OpenAI's error body, of every failure of every route but the probes."""

STATE = {
    "type": "object",
    "required": ["status", "groups"],
    "properties": {
        "status": {"enum": ["ok", "unavailable"]},
        "reason": {"type": "string"},
        "groups": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def describe(app: FastAPI) -> None:
    """Make `app` describe itself; the description is made once, when it is first asked for."""
    found = app.openapi
    corrected = cache(lambda: _corrected(found()))
    # As FastAPI documents it.
    app.openapi = corrected  # type: ignore[method-assign]


def _corrected(tree: dict[str, Any]) -> dict[str, Any]:
    for path, methods in tree["paths"].items():
        for operation in methods.values():
            _correct(path, operation["responses"])
    schemas = tree.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas |= {"Error": ERROR, "State": STATE, **NESTED}
    tree["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    # The empty one: whether a key is needed is for the server's settings to say.
    tree["security"] = [{"key": []}, {}]
    return tree


def _correct(path: str, responses: dict[str, Any]) -> None:
    responses.pop("422", None)  # is a 400 here
    answer = responses["200"]
    if path in TEXTS:
        answer["content"] = _contents([_TEXT], {"type": "string"})
    if path in STREAMING:
        answer["content"] |= _contents([_EVENTS], {"type": "string"})
    if path in PROBES:
        answer["content"] = _contents([_JSON], _named("State"))
        responses["503"] = {"description": "Takes no requests", "content": _contents([_JSON], _named("State"))}
    for status, meaning in (("4XX", "Refused"), ("5XX", "Failed")):
        responses[status] = {"description": meaning, "content": _contents([_JSON], _named("Error"))}


def _contents(types: Iterable[str], schema: dict[str, Any]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind in types}


def _named(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}
