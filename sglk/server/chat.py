"""`POST /v1/chat/completions`."""

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sglk.engine.messages import Output, SamplingParams
from sglk.errors import RequestError
from sglk.server.answers import Answer, collect, usage
from sglk.server.body import body_schema, read_body, refuse_unsupported
from sglk.server.bridge import Generation
from sglk.server.choices import TokenIds, Wanted, encode, new_id, open_choices
from sglk.server.deployment import Deployment, deployment_of
from sglk.server.logprobs import chat_logprobs
from sglk.server.openai_schema import NEUTRAL, ChatBody, check_lengths, engine_names
from sglk.server.openai_stream import OpenAIStream
from sglk.server.sampling import sampling_params
from sglk.server.sessions import session_of
from sglk.server.spelling import Spelling
from sglk.server.streaming import EventStream, dump, unless_client_leaves

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
    check_lengths(body)
    params = _sampling(body)
    prompt = await _prompt(deployment, body)
    request_id = new_id("chatcmpl")
    names = {**engine_names(body), "prompt": "messages", "logprobs": "top_logprobs"}
    generation = await open_choices(
        deployment,
        [Wanted(prompt, params, body.n)],
        request_id=request_id,
        names=names,
        session=session_of(request, body),
    )
    n = body.n or 1
    head = {"id": request_id, "created": int(time.time()), "model": deployment.model_name}
    if body.stream:
        head["object"] = "chat.completion.chunk"
        stream = ChatStream(head, generation, n, body.include_usage, deployment.spelling)
        return EventStream(stream.events(request.scope), generation)
    with generation:
        answers = await unless_client_leaves(request.receive, collect(generation))
    spelling = deployment.spelling if body.logprobs else None
    choices = [_choice(index, answer, spelling) for index, answer in enumerate(answers)]
    return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage(answers, n)})


class ChatStream(OpenAIStream):
    """Chunks of a streamed chat answer."""

    def __init__(
        self, head: Mapping[str, Any], generation: Generation, n: int, include_usage: bool, spelling: Spelling
    ) -> None:
        super().__init__(head, generation, n, include_usage)
        self._spelling = spelling

    def lead(self, index: int, output: Output) -> str | None:
        """Return the delta that names the role."""
        return _delta(index, '{"role":"assistant","content":""}', "null", None)

    def logprobs(self, index: int, output: Output) -> Any:
        """Return the logprobs of new tokens."""
        return chat_logprobs(self._spelling, output.logprobs)

    def chunk(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> str:
        """Return one chunk's `choices`."""
        delta = f'{{"content":{dump(text)}}}' if text or logprobs else "{}"
        return _delta(index, delta, "null" if logprobs is None else dump(logprobs), finish_reason)


def _delta(index: int, delta: str, logprobs: str, finish_reason: str | None) -> str:
    return f'[{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{dump(finish_reason)}}}]'


def _choice(index: int, answer: Answer, spelling: Spelling | None) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": spelling and chat_logprobs(spelling, answer.logprobs),
        "finish_reason": answer.finish_reason,
    }


def _sampling(body: ChatBody) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        message = "`top_logprobs` needs `logprobs` to be true; set it, or leave `top_logprobs` out"
        raise RequestError(message, param="top_logprobs", code="invalid_value")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, max_new_tokens=body.limit, min_new_tokens=body.min_tokens or 0, logprobs=logprobs)


async def _prompt(deployment: Deployment, body: ChatBody) -> TokenIds:
    variables = body.chat_template_kwargs or {}
    if reserved := RESERVED_VARIABLES & variables.keys():
        text = f"`chat_template_kwargs` must not set {', '.join(sorted(reserved))}"
        raise RequestError(text, param="chat_template_kwargs")
    text = deployment.chat_template.render(body.messages, **variables)
    return await encode(deployment, text, "messages", special=False)
