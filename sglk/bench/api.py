"""The three interfaces that can be driven: what a request looks like, and how to read the events of its answer."""

from dataclasses import dataclass
from typing import Any, Protocol

from sglk.bench.prompts import Prompt
from sglk.bench.statement import printable_text, whole

Event = dict[str, Any]


class AnswerError(Exception):
    """The answer is not one: an HTTP error, an error event, or a stream that breaks the protocol."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event says. Counts are totals so far; None = the event does not say."""

    text: str = ""
    has_choice: bool = True
    """False for an event that only carries usage."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None


class Api(Protocol):
    """One HTTP interface for streamed generation."""

    name: str
    path: str
    takes_ids: bool
    """Whether prompts may be token ids."""
    cumulative: bool
    """Whether each event repeats the text of the events before it."""

    def body(self, prompt: Prompt, output_len: int, model: str | None) -> dict[str, Any]:
        """Return the JSON body that asks for exactly `output_len` tokens, greedy, as a stream."""

    def read(self, event: Event) -> Piece:
        """Return what the event says. Raises AnswerError."""


class GenerateApi:
    """`POST /generate`, native to SGLang and sglk."""

    name = "generate"
    path = "/generate"
    takes_ids = True
    cumulative = True

    def body(self, prompt: Prompt, output_len: int, model: str | None) -> dict[str, Any]:
        """Return the body; this interface names no model."""
        content = {"input_ids": list(prompt.token_ids)} if prompt.packed else {"text": prompt.transcript()}
        sampling = {"max_new_tokens": output_len, "temperature": 0.0, "ignore_eos": True}
        return {**content, "sampling_params": sampling, "stream": True}

    def read(self, event: Event) -> Piece:
        """Return what the event says; `text` is the whole text so far."""
        meta = _object(event.get("meta_info"))
        finish = _object(meta.get("finish_reason"))
        reason = finish.get("type")
        if reason in ("abort", "error"):
            raise AnswerError(f"{reason}: {finish.get('message') or 'no reason given'}")
        return Piece(
            text=_text(event.get("text")),
            prompt_tokens=whole(meta.get("prompt_tokens")),
            completion_tokens=whole(meta.get("completion_tokens")),
            cached_tokens=whole(meta.get("cached_tokens")),
            finish_reason=printable_text(reason),
        )


class CompletionsApi:
    """`POST /v1/completions`, OpenAI's older interface, which most servers let prompt by token ids."""

    name = "completions"
    path = "/v1/completions"
    takes_ids = True
    cumulative = False

    def body(self, prompt: Prompt, output_len: int, model: str | None) -> dict[str, Any]:
        """Return the body."""
        content = list(prompt.token_ids) if prompt.packed else prompt.transcript()
        return {"prompt": content, **_openai_options(output_len, model)}

    def read(self, event: Event) -> Piece:
        """Return what the event says."""
        choice = _first_choice(event)
        return _openai_piece(event, choice, _text(choice.get("text")) if choice else "")


class ChatApi:
    """`POST /v1/chat/completions`."""

    name = "chat"
    path = "/v1/chat/completions"
    takes_ids = False
    cumulative = False

    def body(self, prompt: Prompt, output_len: int, model: str | None) -> dict[str, Any]:
        """Return the body."""
        messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
        return {"messages": messages, **_openai_options(output_len, model)}

    def read(self, event: Event) -> Piece:
        """Return what the event says; tokens of reasoning are tokens."""
        choice = _first_choice(event)
        delta = _object(choice.get("delta")) if choice else {}
        thought = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        return _openai_piece(event, choice, thought + _text(delta.get("content")))


APIS: dict[str, Api] = {api.name: api for api in (GenerateApi(), CompletionsApi(), ChatApi())}


def error_message(body: object) -> str | None:
    """Return the message of an error body or event in any of the shapes that servers use; None if it is no error."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    if error:
        return str(error)
    if body.get("object") == "error" or "detail" in body:
        return str(body.get("message") or body.get("detail"))
    return None


def _openai_options(output_len: int, model: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_tokens": output_len,
        "temperature": 0.0,
        # Not OpenAI's, but every server that is worth a benchmark knows it: without it lengths are left to chance.
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return options if model is None else {"model": model, **options}


def _openai_piece(event: Event, choice: dict[str, Any] | None, text: str) -> Piece:
    usage = _object(event.get("usage"))
    reason = choice.get("finish_reason") if choice else None
    if reason in ("abort", "error"):
        raise AnswerError(f"{reason}: the server gave up the request")
    return Piece(
        text=text,
        has_choice=choice is not None,
        prompt_tokens=whole(usage.get("prompt_tokens")),
        completion_tokens=whole(usage.get("completion_tokens")),
        cached_tokens=whole(_object(usage.get("prompt_tokens_details")).get("cached_tokens")),
        finish_reason=printable_text(reason),
    )


def _first_choice(event: Event) -> dict[str, Any] | None:
    choices = event.get("choices")
    return _object(choices[0]) if isinstance(choices, list) and choices else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
