"""Request bodies of OpenAI's completions and chat completions."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sglk.server import sampling
from sglk.server.body import Body
from sglk.server.sampling import SamplingFields

Prompts = str | list[str] | list[int] | list[list[int]]
PROMPTS = "a string, a list of strings, a list of token ids or a list of such lists"

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **sampling.NEUTRAL,
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "lora_path": ("",),
    "modalities": (["text"],),
    "return_logprob": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""OpenAI features that the server lacks, with the values that ask for nothing."""


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = Field(default=None, description="true or false")


class OpenAIFields(SamplingFields):
    """What completions and chat completions share."""

    model: str | None = Field(default=None, description="the name of the served model, or null")
    max_tokens: int | None = Field(default=None, ge=1, description="a whole number of at least 1, or null")
    stream: bool | None = Field(default=None, description="true or false")
    stream_options: StreamOptions | None = Field(default=None, description='an object such as {"include_usage": true}')

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionBody(OpenAIFields):
    """Body of `POST /v1/completions`."""

    prompt: Prompts = Field(description=PROMPTS)


class ChatBody(OpenAIFields):
    """Body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(
        min_length=1, description="a list of at least one message with `role` and `content`"
    )
    max_completion_tokens: int | None = Field(default=None, ge=1, description="a whole number of at least 1, or null")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="an object")
