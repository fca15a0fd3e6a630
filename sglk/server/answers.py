"""What has been generated for each answer of one request so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sglk.cluster.flight import LOST
from sglk.engine.messages import Finish, Output, TokenLogprob
from sglk.errors import RequestError
from sglk.server.bridge import TIMED_OUT, Generation
from sglk.server.counting import ABORTED

_STATUS = {TIMED_OUT: 504, LOST: 503}
"""Of codes for which the request is not to blame; engines use others for what is wrong with a request."""


@dataclass(slots=True)
class Answer:
    """The outputs of one engine request, joined."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish: Finish | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One per token, where asked for."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()

    @property
    def untouched(self) -> bool:
        """Whether no output has come yet."""
        return self.prompt_tokens == 0

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's finish reason: `stop`, `length`, or None while the answer is incomplete."""
        return self.finish.reason if self.finish is not None and self.finish.reason in ("stop", "length") else None

    def add(self, output: Output) -> None:
        """Append `output`."""
        self.text += output.text
        self.token_ids.extend(output.token_ids)
        self.logprobs.extend(output.logprobs)
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.count(output)

    def count(self, output: Output) -> None:
        """Take the counts of `output` without its text."""
        self.prompt_tokens = output.prompt_tokens
        self.completion_tokens = output.completion_tokens
        self.cached_tokens = output.cached_tokens
        self.finish = output.finish


async def collect(generation: Generation) -> list[Answer]:
    """Return the complete answers; raises RequestError when the engine failed or dropped one of them."""
    answers = [Answer() for _ in generation.request_ids]
    async for batch in generation.batches():
        for index, output in batch:
            answers[index].add(output)
            raise_if_failed(output.finish)
    return answers


def raise_if_failed(finish: Finish | None) -> None:
    """Raise the RequestError that tells of an answer which the engine could not complete."""
    if finish is None or finish.reason in ("stop", "length"):
        return
    if finish.reason == "abort":
        message = finish.message or "the request was aborted before it was complete; send it again"
        raise RequestError(message, code=ABORTED, status=503)
    if finish.code is not None:
        status = _STATUS.get(finish.code, 400)
        raise RequestError(finish.message or finish.code, code=finish.code, status=status)
    raise RequestError(finish.message or "the engine failed to answer", code="engine_error", status=500)


def usage(answers: Sequence[Answer], n: int) -> dict[str, Any]:
    """Return OpenAI's `usage`: prompt tokens once per prompt, whose `n` answers lie next to each other."""
    firsts = answers[::n]
    prompt_tokens = sum(answer.prompt_tokens for answer in firsts)
    completion_tokens = sum(answer.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in firsts)},
    }
