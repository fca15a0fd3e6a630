"""Offline generation: a model in the caller's own process, without a server."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from numbers import Integral
from queue import SimpleQueue
from types import TracebackType
from typing import Any, cast

from sglk.config.compose import compose
from sglk.config.quoting import quoted, quoted_value
from sglk.engine.engine import Engine
from sglk.engine.messages import Finish, GenerateRequest, Output, SamplingParams, TokenLogprob
from sglk.errors import RequestError
from sglk.planner.placement import place

log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
"""Text, or token ids."""


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

    def add(self, output: Output) -> None:
        """Append one message of the engine."""
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.cached_tokens = output.cached_tokens
        self.finish = output.finish


class LLM:
    """A loaded model that continues prompts: `LLM(model="smollm2").generate("Once upon a time")`.

    `model` and `chip` are what `sglk serve` takes, `runtime` are runtime parameters by keyword (such as
    `max_running_requests=8`), `overrides` any other `key=value` words. A tuned profile is used as `sglk serve` would.
    Raises ConfigError, ModelLoadError, BackendError or CapacityError.
    """

    def __init__(self, model: str, chip: str = "cpu", overrides: Sequence[str] = (), **runtime: Any) -> None:
        words = [quoted("chip", chip), quoted("model", model), *overrides]
        words += [f"runtime.{key}={_override_value(value)}" for key, value in runtime.items()]
        composed = compose("serve", words)
        for warning in composed.warnings:
            log.warning("%s", warning)
        replica = place(composed).replicas[0]
        if replica.note is not None:
            log.info("%s", replica.note)
        self.engine = Engine.from_config(replica.config)
        self._ids = count()
        self.engine.start()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Continue every prompt and return the answers in the order of the prompts.

        `sampling` holds for all prompts, or is one per prompt. Raises RequestError when a prompt is refused.
        """
        batch = _as_prompts(prompts)
        params = list(sampling) if isinstance(sampling, Sequence) else [sampling or SamplingParams()] * len(batch)
        if len(params) != len(batch):
            raise RequestError(f"{len(batch)} prompts and {len(params)} sampling parameters; give one each, or one")
        for one in params:
            if not isinstance(one, SamplingParams):
                raise RequestError(f"sampling must be SamplingParams, one or one per prompt, got {repr(one)[:60]}")
        requests = [self._request(prompt, one) for prompt, one in zip(batch, params, strict=True)]
        completions = {request.request_id: Completion(request.prompt_ids) for request in requests}
        self._run(requests, completions)
        return list(completions.values())

    def close(self) -> None:
        """Stop the engine."""
        self.engine.shutdown()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> GenerateRequest:
        ids = tuple(self.engine.tokenizer.encode(prompt)) if isinstance(prompt, str) else _token_ids(prompt)
        return GenerateRequest(f"llm-{next(self._ids)}", ids, sampling)

    def _run(self, requests: list[GenerateRequest], completions: dict[str, Completion]) -> None:
        outputs: SimpleQueue[Output] = SimpleQueue()
        open_ids: set[str] = set()
        try:
            for request in requests:
                self.engine.submit(request, outputs.put)
                open_ids.add(request.request_id)
            while open_ids:
                output = outputs.get()
                completions[output.request_id].add(output)
                if output.finish is not None:
                    open_ids.remove(output.request_id)
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
