"""Offline generation: a model in the caller's own process, without a server."""

import logging
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from numbers import Integral
from os import PathLike
from queue import SimpleQueue
from types import TracebackType
from typing import Any, cast

from sglk.config.compose import compose
from sglk.config.quoting import quoted, quoted_value
from sglk.engine.choices import for_choice
from sglk.engine.engine import Engine
from sglk.engine.messages import (
    DEFAULT_MAX_NEW_TOKENS,
    Finish,
    GenerateRequest,
    Output,
    SamplingParams,
    TokenLogprob,
)
from sglk.errors import RequestError
from sglk.models.chat import ChatTemplate, load_chat_template
from sglk.planner.placement import place

log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
"""Text, or token ids."""

Message = Mapping[str, Any]
"""One turn of a chat: `role` and `content`, as in OpenAI's API."""


@dataclass(slots=True)
class Completion:
    """The answer to one prompt."""

    prompt_ids: tuple[int, ...]
    text: str = ""
    token_ids: tuple[int, ...] = ()
    cached_tokens: int = 0
    """Prompt tokens answered from the prefix cache."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of `token_ids`, with `SamplingParams(logprobs=...)`."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    """One for each prompt token from `prompt_logprobs_start` on, None for the first."""
    finish: Finish | None = None
    """Why it ended; `error` has a message, and then the answer is not whole."""

    def add(self, output: Output) -> None:
        """Append one message of the engine."""
        self.text += output.text
        self.token_ids += tuple(output.token_ids)
        self.logprobs += output.logprobs
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.cached_tokens = output.cached_tokens
        self.finish = output.finish


class LLM:
    """A loaded model that continues prompts: `LLM(model="smollm2").generate("Once upon a time")`.

    `model` and `chip` are what `sglk serve` takes, `runtime` are runtime parameters by keyword (such as
    `max_running_requests=8`), `overrides` any other `key=value` words. A tuned profile is used as `sglk serve` would.
    All methods may be called from any thread. The engine stops with `close`, at the end of a `with` block, or when
    nothing refers to the LLM any more. A process for one is started by `spawn`: in a child of `fork` torch waits for
    threads that only its parent has. Raises ConfigError, ModelLoadError, BackendError or CapacityError.
    """

    def __init__(
        self, model: str | PathLike[str], chip: str = "cpu", overrides: Sequence[str] = (), **runtime: Any
    ) -> None:
        words = [quoted("chip", str(chip)), quoted("model", str(model)), *overrides]
        words += [f"runtime.{key}={_override_value(value)}" for key, value in runtime.items()]
        composed = compose("serve", words)
        for warning in composed.warnings:
            log.warning("%s", warning)
        replica = place(composed).replicas[0]
        if replica.note is not None:
            log.info("%s", replica.note)
        self._template_file = replica.config.server.chat_template
        self.engine = Engine.from_config(replica.config)
        self._ids = count()
        self.engine.start()
        self._close = weakref.finalize(self, self.engine.shutdown)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        n: int = 1,
    ) -> list[Completion]:
        """Continue every prompt and return the answers in the order of the prompts, `n` of each side by side.

        `sampling` holds for all prompts, or is one per prompt; without it at most 128 tokens follow each. With a seed,
        the answers to one prompt have seeds made from it. Raises RequestError when a prompt is refused.
        """
        return self._answers(_as_prompts(prompts), sampling, n)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        n: int = 1,
        **variables: Any,
    ) -> list[Completion]:
        """Answer one chat, or each of several, as `generate` does.

        The prompts are made by the model's chat template (or that of `server.chat_template`), which sees `variables`
        too. Raises RequestError where there is no template, or where it refuses the messages.
        """
        chats = [messages] if messages and isinstance(messages[0], Mapping) else messages
        return self._answers([self._rendered(chat, variables) for chat in chats], sampling, n)

    def close(self) -> None:
        """Stop the engine."""
        self._close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _template(self) -> ChatTemplate:
        return load_chat_template(self.engine.tokenizer, self._template_file)

    def _rendered(self, chat: Any, variables: Mapping[str, Any]) -> Prompt:
        if not _is_list(chat):
            message = f"a chat must be a list of messages, each with `role` and `content`, got {repr(chat)[:60]}"
            raise RequestError(message, param="messages", code="invalid_type")
        return self.engine.tokenizer.encode(self._template.render(chat, **variables), add_special_tokens=False)

    def _answers(
        self, prompts: Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None, n: int
    ) -> list[Completion]:
        sampling = SamplingParams(max_new_tokens=DEFAULT_MAX_NEW_TOKENS) if sampling is None else sampling
        params = list(sampling) if isinstance(sampling, Sequence) else [sampling] * len(prompts)
        if len(params) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts and {len(params)} sampling parameters; give one each, or one")
        for one in params:
            if not isinstance(one, SamplingParams):
                raise RequestError(f"sampling must be SamplingParams, one or one per prompt, got {repr(one)[:60]}")
        if not _is_token(n) or n < 1:
            raise RequestError(f"n={n!r} is not allowed; use a whole number of at least 1", param="n")
        requests = [
            self._request(prompt, for_choice(one, index))
            for prompt, one in zip(prompts, params, strict=True)
            for index in range(n)
        ]
        completions = {request.request_id: Completion(tuple(request.prompt_ids)) for request in requests}
        self._run(requests, completions)
        return list(completions.values())

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> GenerateRequest:
        ids = tuple(self.engine.tokenizer.encode(prompt)) if isinstance(prompt, str) else _token_ids(prompt)
        return GenerateRequest(f"llm-{next(self._ids)}", ids, sampling)

    def _run(self, requests: list[GenerateRequest], completions: dict[str, Completion]) -> None:
        ended: SimpleQueue[str] = SimpleQueue()
        open_ids: set[str] = set()

        def receive(output: Output) -> None:
            completions[output.request_id].add(output)
            # Waking this thread for every token would cost the engine's a part of each step.
            if output.finish is not None:
                ended.put(output.request_id)

        try:
            for request in requests:
                self.engine.submit(request, receive)
                open_ids.add(request.request_id)
            while open_ids:
                open_ids.remove(ended.get())
        finally:
            for request_id in open_ids:
                self.engine.abort(request_id)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt, or several, as a list; each is looked at when it is its turn."""
    if isinstance(prompts, str) or not _is_list(prompts):
        return [cast(Prompt, prompts)]
    listed: list[Any] = list(prompts)
    return [listed] if listed and _is_token(listed[0]) else listed


def _is_list(value: object) -> bool:
    """Return whether it is a list of anything; arrays are no Sequence."""
    return isinstance(value, Collection) and not isinstance(value, bytes | Mapping)


def _is_token(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _token_ids(prompt: Any) -> tuple[int, ...]:
    if not _is_list(prompt) or not all(_is_token(token) for token in prompt):
        shown = repr(prompt)[:60]
        message = f"a prompt must be a text or a list of token ids, got {shown}"
        raise RequestError(message, param="prompt", code="invalid_type")
    return tuple(int(token) for token in prompt)


def _override_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return quoted_value(value) if isinstance(value, str) else str(value)
