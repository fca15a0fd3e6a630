"""`POST /v1/completions`."""

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sglk.server.answers import Answer, collect, usage
from sglk.server.body import body_schema, read_body, refuse_unsupported
from sglk.server.choices import TokenIds, Wanted, check_count, encode, new_id, open_choices
from sglk.server.deployment import Deployment, deployment_of
from sglk.server.openai_schema import NEUTRAL, CompletionBody, Prompts
from sglk.server.openai_stream import OpenAIStream
from sglk.server.streaming import EventStream, dump, unless_client_leaves

DEFAULT_MAX_TOKENS = 16
"""OpenAI's own default for this route."""

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
async def completions(request: Request) -> Response:
    """Continue one or several prompts (OpenAI)."""
    deployment = deployment_of(request)
    body = await read_body(request, CompletionBody)
    deployment.check_model(body.model)
    refuse_unsupported(body, NEUTRAL)
    prompts = await _prompts(deployment, body.prompt)
    request_id = new_id("cmpl")
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    wanted = [Wanted(prompt, body, limit) for prompt in prompts]
    generation = open_choices(deployment, wanted, request_id=request_id, param="prompt")
    head = {"id": request_id, "object": "text_completion", "created": int(time.time()), "model": deployment.model_name}
    n = body.n or 1
    if body.stream:
        stream = CompletionStream(head, generation, n, body.include_usage)
        return EventStream(stream.events(request.scope), generation)
    with generation:
        answers = await unless_client_leaves(request.receive, collect(generation))
    return JSONResponse({**head, "choices": _choices(answers), "usage": usage(answers, n)})


class CompletionStream(OpenAIStream):
    """Chunks of a streamed completion."""

    def chunk(self, index: int, text: str, finish_reason: str | None) -> str:
        """Return one chunk's `choices`."""
        reason = dump(finish_reason)
        return f'[{{"index":{index},"text":{dump(text)},"logprobs":null,"finish_reason":{reason}}}]'


def _choices(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [
        {"index": index, "text": answer.text, "logprobs": None, "finish_reason": answer.finish_reason}
        for index, answer in enumerate(answers)
    ]


async def _prompts(deployment: Deployment, prompt: Prompts) -> list[TokenIds]:
    texts, id_lists = _as_lists(prompt)
    check_count(deployment, texts or id_lists, "prompt")
    if texts:
        return [await encode(deployment, text, "prompt") for text in texts]
    return [tuple(ids) for ids in id_lists]


def _as_lists(prompt: Any) -> tuple[list[str], list[list[int]]]:
    """Return `prompt` as a list of texts or as a list of token-id lists; the other one is empty."""
    if isinstance(prompt, str):
        return [prompt], []
    if not prompt:
        return [], []
    if isinstance(prompt[0], str):
        return prompt, []
    return [], prompt if isinstance(prompt[0], list) else [prompt]
