"""`POST /generate`: SGLang's native route."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from sglk.engine.messages import DEFAULT_MAX_NEW_TOKENS, Finish, SamplingParams
from sglk.errors import RequestError
from sglk.server.answers import Answer, collect, raise_if_failed
from sglk.server.body import body_schema, read_body, refuse_unsupported
from sglk.server.bridge import Generation
from sglk.server.choices import TokenIds, Wanted, check_count, encode, new_id, open_choices
from sglk.server.deployment import Deployment, deployment_of
from sglk.server.logprobs import native_tokens, native_top
from sglk.server.native_schema import NEUTRAL, SAMPLING_NEUTRAL, GenerateBody, NativeSampling
from sglk.server.sampling import check_choices, sampling_params
from sglk.server.sessions import session_of
from sglk.server.spelling import Spelling
from sglk.server.streaming import DONE, EventStream, event, failure_event, unless_client_leaves

T = TypeVar("T")
D = TypeVar("D")

_SAMPLING_NAMES = {name: f"sampling_params.{name}" for name in NativeSampling.model_fields}

router = APIRouter()


@dataclass(frozen=True)
class _Batch:
    """What a body asks for."""

    wanted: list[Wanted]
    engine_names: Mapping[str, str]
    """Fields that the engine may refuse under another name."""
    names: list[str]
    """What the client calls each answer: `rid`, or a fresh id."""
    single: bool
    """Whether the response is one object instead of a list."""
    spelling: Spelling | None
    """Writes the texts of tokens in logprobs, if asked for."""

    def result(self, generation: Generation, index: int, answer: Answer) -> dict[str, Any]:
        """Return answer number `index`, as far as it is known."""
        wanted = self.wanted[index * len(self.wanted) // len(self.names)]
        meta = {
            "id": self.names[index],
            "finish_reason": _finish_reason(answer.finish, answer.completion_tokens),
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "cached_tokens": answer.cached_tokens,
            "e2e_latency": generation.clocks[index].e2e_s,
        }
        if wanted.sampling.logprobs is not None:
            meta |= _logprobs(wanted, answer, self.spelling)
        return {"text": answer.text, "output_ids": answer.token_ids, "meta_info": meta}


@router.post("/generate", openapi_extra=body_schema(GenerateBody))
async def generate(request: Request) -> Response:
    """Continue one prompt or a batch (SGLang)."""
    deployment = deployment_of(request)
    body = await read_body(request, GenerateBody)
    refuse_unsupported(body, NEUTRAL)
    request_id = new_id("gen")
    batch = await _read_batch(deployment, body, request_id)
    generation = await open_choices(
        deployment, batch.wanted, request_id=request_id, names=batch.engine_names, session=session_of(request, body)
    )
    if body.stream:
        return EventStream(_events(generation, batch, request.scope), generation)
    with generation:
        answers = await unless_client_leaves(request.receive, collect(generation))
    results = [batch.result(generation, index, answer) for index, answer in enumerate(answers)]
    return JSONResponse(results[0] if batch.single else results)


async def _events(generation: Generation, batch: _Batch, scope: Scope) -> AsyncIterator[bytes]:
    """Yield cumulative results, all that one engine step brought in one piece."""
    answers = [Answer() for _ in batch.names]
    try:
        async for outputs in generation.batches():
            chunks = []
            for index, output in outputs:
                answers[index].add(output)
                raise_if_failed(output.finish)
                result = batch.result(generation, index, answers[index])
                chunks.append(event(result if batch.single else {**result, "index": index}))
            yield b"".join(chunks)
    except RequestError as error:
        yield failure_event(scope, error)
        return
    yield DONE


def _logprobs(wanted: Wanted, answer: Answer, spelling: Spelling | None) -> dict[str, Any]:
    known = answer.prompt_logprobs
    prompt = list(zip(wanted.prompt_ids[len(wanted.prompt_ids) - len(known) :], known, strict=True))
    output = [(each.token_id, each) for each in answer.logprobs]
    told = {
        "input_token_logprobs": native_tokens(prompt, spelling),
        "output_token_logprobs": native_tokens(output, spelling),
    }
    if not wanted.sampling.logprobs:
        return told
    return {
        **told,
        "input_top_logprobs": native_top(prompt, spelling),
        "output_top_logprobs": native_top(output, spelling),
    }


def _finish_reason(finish: Finish | None, tokens: int) -> dict[str, Any] | None:
    if finish is None:
        return None
    if finish.reason == "length":
        return {"type": "length", "length": tokens}
    return {"type": finish.reason, "matched": finish.matched}


async def _read_batch(deployment: Deployment, body: GenerateBody, request_id: str) -> _Batch:
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("give either `text` or `input_ids`", param="text", code="missing_parameter")
    param = "input_ids" if body.text is None else "text"
    prompts, listed = await _prompts(deployment, body.input_ids if body.text is None else body.text, param)
    sampling = _per_prompt(body.sampling_params, NativeSampling(), len(prompts), "sampling_params")
    for fields in sampling:
        refuse_unsupported(fields, SAMPLING_NEUTRAL, "sampling_params.")
    n = check_choices(sampling[0].n, deployment.config.server.max_choices)
    if any((fields.n or 1) != n for fields in sampling):
        raise RequestError("`sampling_params.n` must be the same for all prompts of a batch", param="sampling_params.n")
    scoring = _scoring(body, len(prompts))
    wanted = [
        Wanted(prompt, _params(fields, len(prompt), *scored), n)
        for prompt, fields, scored in zip(prompts, sampling, scoring, strict=True)
    ]
    rids = _per_prompt(body.rid, None, len(prompts), "rid")
    names = [_name(rids[index // n], request_id, index, n) for index in range(len(prompts) * n)]
    spelling = deployment.spelling if body.return_text_in_logprobs else None
    return _Batch(wanted, {**_SAMPLING_NAMES, "prompt": param}, names, single=not listed and n == 1, spelling=spelling)


def _scoring(body: GenerateBody, count: int) -> list[tuple[bool, int, int]]:
    """Return per prompt whether logprobs are wanted, from which prompt token on, and how many likeliest ones."""
    wanted = _per_prompt(body.return_logprob, False, count, "return_logprob")
    starts = _per_prompt(body.logprob_start_len, -1, count, "logprob_start_len")
    tops = _per_prompt(body.top_logprobs_num, 0, count, "top_logprobs_num")
    return list(zip(wanted, starts, tops, strict=True))


def _params(fields: NativeSampling, prompt_length: int, scored: bool, start: int, top: int) -> SamplingParams:
    if scored and start > prompt_length:
        message = f"`logprob_start_len` must be at most the prompt's {prompt_length} tokens, got {start}"
        raise RequestError(message, param="logprob_start_len", code="invalid_value")
    least = fields.min_new_tokens or 0
    return sampling_params(
        fields,
        max_new_tokens=max(DEFAULT_MAX_NEW_TOKENS, least) if fields.max_new_tokens is None else fields.max_new_tokens,
        min_new_tokens=least,
        logprobs=top if scored else None,
        prompt_logprobs_start=start if scored and 0 <= start < prompt_length else None,
    )


def _name(rid: str | None, request_id: str, index: int, n: int) -> str:
    if rid is None:
        return f"{request_id}-{index}"
    return rid if n == 1 else f"{rid}-{index % n}"


def _per_prompt(given: T | list[T] | None, default: D, count: int, param: str) -> Sequence[T | D]:
    if not isinstance(given, list):
        return [default if given is None else given] * count
    if len(given) != count:
        message = f"`{param}` has {len(given)} entries for {count} prompts; give one, or one per prompt"
        raise RequestError(message, param=param)
    return given


async def _prompts(deployment: Deployment, given: Any, param: str) -> tuple[list[TokenIds], bool]:
    """Return the prompts and whether they came as a list."""
    if isinstance(given, str):
        return [await encode(deployment, given, param)], False
    if given and isinstance(given[0], int):
        return [tuple(given)], False
    check_count(deployment, given, param)
    if isinstance(given[0], str):
        return [await encode(deployment, text, param) for text in given], True
    return [tuple(ids) for ids in given], True
