"""`POST /v1/completions`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sglk.engine.messages import Output, SamplingParams, TokenLogprob
from sglk.server.answers import Answer, collect, usage
from sglk.server.body import body_schema, read_body, refuse_unsupported
from sglk.server.bridge import Generation
from sglk.server.choices import TokenIds, Wanted, check_count, encode, new_id, open_choices
from sglk.server.deployment import Deployment, deployment_of
from sglk.server.logprobs import CompletionLogprobs
from sglk.server.openai_schema import NEUTRAL, CompletionBody, Prompts, check_lengths, engine_names
from sglk.server.openai_stream import OpenAIStream
from sglk.server.sampling import sampling_params
from sglk.server.sessions import session_of
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
    check_lengths(body)
    prompts = await _prompts(deployment, body.prompt)
    request_id = new_id("cmpl")
    params = _sampling(body)
    wanted = [Wanted(ids, params, body.n) for _, ids in prompts]
    generation = await open_choices(
        deployment, wanted, request_id=request_id, names=engine_names(body), session=session_of(request, body)
    )
    head = {"id": request_id, "object": "text_completion", "created": int(time.time()), "model": deployment.model_name}
    n = body.n or 1
    choices = [Choice(deployment, *prompt, body) for prompt in prompts for _ in range(n)]
    if body.stream:
        stream = CompletionStream(head, generation, n, body.include_usage, choices)
        return EventStream(stream.events(request.scope), generation)
    with generation:
        answers = await unless_client_leaves(request.receive, collect(generation))
    filled = [_choice(index, *each) for index, each in enumerate(zip(choices, answers, strict=True))]
    return JSONResponse({**head, "choices": filled, "usage": usage(answers, n)})


class Choice:
    """What one answer shows beside its own text: the prompt with `echo`, and logprobs."""

    def __init__(self, deployment: Deployment, text: str | None, prompt_ids: TokenIds, body: CompletionBody) -> None:
        self.echo = ""
        """The prompt, if it is to be repeated."""
        self._echoed_ids: TokenIds = ()
        if body.echo:
            self._echoed_ids = prompt_ids
            self.echo = deployment.tokenizer.decode(prompt_ids) if text is None else text
        self._logprobs = None if body.logprobs is None else CompletionLogprobs(deployment.spelling)

    def prompt_logprobs(self, known: Sequence[TokenLogprob | None]) -> dict[str, list[Any]] | None:
        """Return `logprobs` of the repeated prompt; comes before those of the answer."""
        if self._logprobs is None:
            return None
        # A prompt that was cut to fit has lost its beginning.
        ids = self._echoed_ids[len(self._echoed_ids) - len(known) :]
        return self._logprobs.piece(list(zip(ids, known, strict=True)))

    def logprobs(self, known: Sequence[TokenLogprob]) -> dict[str, list[Any]] | None:
        """Return `logprobs` of the answer's next tokens."""
        if self._logprobs is None:
            return None
        return self._logprobs.piece([(each.token_id, each) for each in known])


class CompletionStream(OpenAIStream):
    """Chunks of a streamed completion; `choices` has one entry per answer."""

    def __init__(
        self,
        head: Mapping[str, Any],
        generation: Generation,
        n: int,
        include_usage: bool,
        choices: Sequence[Choice],
    ) -> None:
        super().__init__(head, generation, n, include_usage)
        self._choices = choices

    def lead(self, index: int, output: Output) -> str | None:
        """Return the chunk that repeats the prompt."""
        choice = self._choices[index]
        if not choice.echo:
            return None
        return self.chunk(index, choice.echo, choice.prompt_logprobs(output.prompt_logprobs or ()), None)

    def logprobs(self, index: int, output: Output) -> Any:
        """Return the logprobs of new tokens."""
        return self._choices[index].logprobs(output.logprobs)

    def chunk(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> str:
        """Return one chunk's `choices`."""
        told, reason = "null" if logprobs is None else dump(logprobs), dump(finish_reason)
        return f'[{{"index":{index},"text":{dump(text)},"logprobs":{told},"finish_reason":{reason}}}]'


def _choice(index: int, choice: Choice, answer: Answer) -> dict[str, Any]:
    prompt, new = choice.prompt_logprobs(answer.prompt_logprobs), choice.logprobs(answer.logprobs)
    logprobs = {name: values + new[name] for name, values in prompt.items()} if prompt and new else None
    return {
        "index": index,
        "text": choice.echo + answer.text,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason,
    }


def _sampling(body: CompletionBody) -> SamplingParams:
    scored = body.echo and body.logprobs is not None
    least = body.min_tokens or 0
    return sampling_params(
        body,
        max_new_tokens=max(DEFAULT_MAX_TOKENS, least) if body.max_tokens is None else body.max_tokens,
        min_new_tokens=least,
        logprobs=body.logprobs,
        prompt_logprobs_start=0 if scored else None,
    )


async def _prompts(deployment: Deployment, prompt: Prompts) -> list[tuple[str | None, TokenIds]]:
    """Return the text, where it is known, and the token ids of each prompt."""
    texts, id_lists = _as_lists(prompt)
    check_count(deployment, texts or id_lists, "prompt")
    if texts:
        return [(text, await encode(deployment, text, "prompt")) for text in texts]
    return [(None, tuple(ids)) for ids in id_lists]


def _as_lists(prompt: Any) -> tuple[list[str], list[list[int]]]:
    """Return `prompt` as a list of texts or as a list of token-id lists; the other one is empty."""
    if isinstance(prompt, str):
        return [prompt], []
    if not prompt:
        return [], []
    if isinstance(prompt[0], str):
        return prompt, []
    return [], prompt if isinstance(prompt[0], list) else [prompt]
