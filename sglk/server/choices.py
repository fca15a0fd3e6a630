"""From prompts and sampling fields to running engine requests."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sglk.engine.choices import for_choice
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.errors import RequestError
from sglk.server.bridge import Generation
from sglk.server.deployment import Deployment
from sglk.server.request_record import new_hex
from sglk.server.sampling import check_choices

LONG_TEXT_CHARACTERS = 16384
"""Longer texts are tokenised in a thread, so that health probes and streams go on meanwhile."""

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One prompt and what to do with it."""

    prompt_ids: TokenIds
    sampling: SamplingParams
    n: int | None
    """Answers; null = 1."""


def new_id(prefix: str) -> str:
    """Return a fresh request id such as `cmpl-0f3a...`."""
    return f"{prefix}-{new_hex()}"


async def encode(deployment: Deployment, text: str, param: str, *, special: bool = True) -> TokenIds:
    """Return the token ids of `text`; `special` adds the tokens that the model expects at a prompt's start.

    An empty text is refused for every model alike, also where a start token alone would make a prompt of it.
    """
    if not text:
        raise RequestError(f"`{param}` is empty; send at least one character", param=param, code="empty_prompt")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        message = f"`{param}` has half of a surrogate pair (\\ud800 to \\udfff), which is no text; leave it out"
        raise RequestError(message, param=param, code="invalid_value") from None
    _check_size(deployment, size, param)
    if len(text) <= LONG_TEXT_CHARACTERS:
        return tuple(deployment.tokenizer.encode(text, add_special_tokens=special))
    return tuple(await asyncio.to_thread(deployment.tokenizer.encode, text, add_special_tokens=special))


def _check_size(deployment: Deployment, size: int, param: str) -> None:
    """Refuse a text of `size` bytes that cannot fit however it is tokenised, which would take long for nothing."""
    longest, room = deployment.tokenizer.longest_token_bytes, deployment.context_length
    if longest is None or deployment.config.runtime.allow_auto_truncate or size <= room * longest:
        return
    message = (
        f"`{param}` has {size} bytes, which are more than the context length of {room} tokens holds; shorten the text"
    )
    raise RequestError(message, param=param, code="context_length_exceeded")


def check_count(deployment: Deployment, prompts: Sequence[object], param: str) -> None:
    """Raise RequestError unless `prompts` has at least one entry and no more than the server takes."""
    limit = deployment.config.server.max_choices
    if not prompts:
        raise RequestError(f"`{param}` is empty; send at least one prompt", param=param, code="empty_prompt")
    if len(prompts) > limit:
        message = f"`{param}` has {len(prompts)} prompts, the server takes at most {limit} at once (server.max_choices)"
        raise RequestError(message, param=param)


async def open_choices(
    deployment: Deployment,
    prompts: Sequence[Wanted],
    *,
    request_id: str,
    names: Mapping[str, str],
    session: str | None,
) -> Generation:
    """Start `n` answers per prompt, those of one prompt next to each other; `session` is what keeps them on one group.

    `names` are the route's names of what the engine calls otherwise, such as `prompt`; raises RequestError as the
    engine does.
    """
    requests: list[GenerateRequest] = []
    for wanted in prompts:
        n = check_choices(wanted.n, deployment.config.server.max_choices)
        # Several answers to one prompt share its prefill where they are together.
        together = f"{request_id}-{len(requests)}" if session is None and n > 1 else session
        for _ in range(n):
            index = len(requests)
            params = for_choice(wanted.sampling, index)
            requests.append(GenerateRequest(f"{request_id}-{index}", wanted.prompt_ids, params, together))
    try:
        await _compile_grammars(deployment, prompts)
        return deployment.bridge.open(requests)
    except RequestError as error:
        if error.param is not None:
            error.param = names.get(error.param, error.param)
        raise


async def _compile_grammars(deployment: Deployment, prompts: Iterable[Wanted]) -> None:
    """Compile in a thread what may take a while, so that health probes and streams go on meanwhile."""
    for grammar in {wanted.sampling.grammar for wanted in prompts}:
        if grammar is not None:
            await asyncio.to_thread(deployment.fleet.prepare, grammar)
