"""`POST /v1/chat/completions`."""

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sglk.errors import RequestError
from sglk.server.answers import Answer, collect, usage
from sglk.server.body import body_schema, read_body, refuse_unsupported
from sglk.server.choices import TokenIds, Wanted, encode, new_id, open_choices
from sglk.server.deployment import Deployment, deployment_of
from sglk.server.openai_schema import NEUTRAL, ChatBody
from sglk.server.openai_stream import OpenAIStream
from sglk.server.streaming import EventStream, dump, unless_client_leaves

ROLE_ALIASES = {"developer": "system"}
"""OpenAI's newer name of a role that open models know by the older one."""

RESERVED_VARIABLES = frozenset({"messages", "tools"})
"""Template variables that have request fields of their own."""

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
async def chat_completions(request: Request) -> Response:
    """Answer a chat (OpenAI)."""
    deployment = deployment_of(request)
    body = await read_body(request, ChatBody)
    deployment.check_model(body.model)
    refuse_unsupported(body, NEUTRAL)
    prompt = await _prompt(deployment, body)
    request_id = new_id("chatcmpl")
    wanted = Wanted(prompt, body, _limit(body))
    generation = open_choices(deployment, [wanted], request_id=request_id, param="messages")
    n = body.n or 1
    head = {"id": request_id, "created": int(time.time()), "model": deployment.model_name}
    if body.stream:
        stream = ChatStream({**head, "object": "chat.completion.chunk"}, generation, n, body.include_usage)
        return EventStream(stream.events(request.scope), generation)
    with generation:
        answers = await unless_client_leaves(request.receive, collect(generation))
    content = {**head, "object": "chat.completion", "choices": _choices(answers), "usage": usage(answers, n)}
    return JSONResponse(content)


class ChatStream(OpenAIStream):
    """Chunks of a streamed chat answer."""

    def lead(self, index: int) -> str | None:
        """Return the delta that names the role."""
        return _delta(index, '{"role":"assistant","content":""}', None)

    def chunk(self, index: int, text: str, finish_reason: str | None) -> str:
        """Return one chunk's `choices`."""
        return _delta(index, f'{{"content":{dump(text)}}}' if text else "{}", finish_reason)


def _delta(index: int, delta: str, finish_reason: str | None) -> str:
    return f'[{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":{dump(finish_reason)}}}]'


def _choices(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None,
            "finish_reason": answer.finish_reason,
        }
        for index, answer in enumerate(answers)
    ]


def _limit(body: ChatBody) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


async def _prompt(deployment: Deployment, body: ChatBody) -> TokenIds:
    variables = body.chat_template_kwargs or {}
    if reserved := RESERVED_VARIABLES & variables.keys():
        text = f"`chat_template_kwargs` must not set {', '.join(sorted(reserved))}"
        raise RequestError(text, param="chat_template_kwargs")
    messages = [{**message, "role": _role(message.get("role"))} for message in body.messages]
    return await encode(deployment, deployment.chat_template.render(messages, **variables), "messages", special=False)


def _role(role: Any) -> Any:
    return ROLE_ALIASES.get(role, role) if isinstance(role, str) else role
