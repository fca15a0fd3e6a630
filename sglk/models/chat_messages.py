"""OpenAI-style chat messages in the plain form that chat templates expect."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from sglk.errors import RequestError

ROLE_ALIASES = {"developer": "system"}
"""OpenAI's newer name of a role that open models know by the older one."""


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `messages` with text contents; nulls are left out and the arguments of tool calls parsed.

    Lists of text parts are joined without a separator, an answer without content is empty. Raises RequestError for
    anything else.
    """
    if not messages:
        raise RequestError("`messages` is empty; give at least one message", param="messages", code="empty_messages")
    return [_plain_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"`{where}` must be an object with a `role`", param=where, code="invalid_message")
    plain = {key: value for key, value in message.items() if value is not None}
    plain["role"] = ROLE_ALIASES.get(plain["role"], plain["role"])
    if plain["role"] == "assistant":
        # It may have been calls of tools alone; templates that were not written for them read a content in any case.
        plain.setdefault("content", "")
    if "content" not in plain:
        raise RequestError(
            f"`{where}.content` is missing; give a text or a list of parts of type 'text'",
            param=f"{where}.content",
            code="invalid_content",
        )
    plain["content"] = _text(plain["content"], f"{where}.content")
    if "tool_calls" in plain:
        plain["tool_calls"] = _tool_calls(plain["tool_calls"], f"{where}.tool_calls")
    return plain


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"`{where}` must be a text or a list of parts", param=where, code="invalid_content")
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise RequestError(
            f"`{where}` has type {kind!r}; this model reads only parts of type 'text'",
            param=where,
            code="invalid_content",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"`{where}.text` must be a text", param=where, code="invalid_content")
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Parse the JSON text of each call's arguments: templates want the object."""
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise RequestError(f"`{where}` must be a list of objects", param=where, code="invalid_tool_calls")
    return [_tool_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        # Unlike `json`, this refuses half surrogate pairs and bounds the depth.
        arguments = from_json(function["arguments"] or "{}")
    except ValueError as error:
        raise RequestError(
            f"`{where}.function.arguments` is not valid JSON: {error}", param=where, code="invalid_tool_calls"
        ) from error
    return {**call, "function": {**function, "arguments": arguments}}
