"""Request bodies of OpenAI's completions and chat completions."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sglk.engine.limits import MAX_LOGPROBS
from sglk.errors import RequestError
from sglk.server import sampling
from sglk.server.body import MAX_ENTRIES, Body, Listed, TokenIdList
from sglk.server.sampling import SamplingFields

Prompts = str | Listed[str] | TokenIdList | Listed[TokenIdList]
PROMPTS = f"a string, a list of strings, a list of token ids or a list of such lists, of at most {MAX_ENTRIES} prompts"

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **sampling.NEUTRAL,
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "lora_path": ("",),
    "min_new_tokens": (0,),
    "modalities": (["text"],),
    "prompt_logprobs": (),
    "return_logprob": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""OpenAI features that the server lacks, with the values that ask for nothing."""


_LOGPROBS = f"a whole number from 0 to {MAX_LOGPROBS}, or null"


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = Field(default=None, description="true or false")


class OpenAIFields(SamplingFields):
    """What completions and chat completions share."""

    model: str | None = Field(default=None, description="the name of the served model, or null")
    temperature: float | None = Field(default=None, ge=0, le=2, description="a number from 0 (greedy) to 2")
    max_tokens: int | None = Field(default=None, ge=1, description="a whole number of at least 1, or null")
    min_tokens: int | None = Field(default=None, ge=0, description="a whole number of at least 0, or null")
    stream: bool | None = Field(default=None, description="true or false")
    stream_options: StreamOptions | None = Field(default=None, description='an object such as {"include_usage": true}')

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer, if the request says so."""
        return self.max_tokens


class CompletionBody(OpenAIFields):
    """Body of `POST /v1/completions`."""

    prompt: Prompts = Field(description=PROMPTS)
    max_tokens: int | None = Field(default=None, ge=0, description="a whole number of at least 0, or null")
    echo: bool | None = Field(default=None, description="true or false")
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS, description=_LOGPROBS)


class ChatBody(OpenAIFields):
    """Body of `POST /v1/chat/completions`."""

    messages: Listed[dict[str, Any]] = Field(
        min_length=1, description=f"a list of 1 to {MAX_ENTRIES} messages with `role` and `content`"
    )
    max_completion_tokens: int | None = Field(default=None, ge=1, description="a whole number of at least 1, or null")
    logprobs: bool | None = Field(default=None, description="true or false")
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS, description=_LOGPROBS)
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="an object")

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer, if the request says so; the newer name goes first."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def check_lengths(body: OpenAIFields) -> None:
    """Raise RequestError when an answer would have to be longer than it may be."""
    if body.limit is not None and (body.min_tokens or 0) > body.limit:
        message = f"`min_tokens` must be at most the limit of {body.limit} tokens, got {body.min_tokens}"
        raise RequestError(message, param="min_tokens", code="invalid_value")


def engine_names(body: OpenAIFields) -> dict[str, str]:
    """Return OpenAI's names of what the engine may refuse under another name."""
    return {"json_schema": "response_format"} if body.json_schema is None else {}
