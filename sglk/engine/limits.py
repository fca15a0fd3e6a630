"""What a request may ask of an engine."""

import logging
import math
from dataclasses import dataclass, replace

from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.errors import RequestError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Checks requests before they are queued, so that nothing the engine holds can fail for its shape.

    A prompt needs room for at least one new token. `max_new_tokens` beyond the room that is left is clamped to it, and
    the answer then ends with `length`. With `allow_auto_truncate` a prompt that is too long loses its beginning: room
    for `max_new_tokens` stays free (a quarter of the limit where none is given), but at most half of the limit.
    """

    vocab_size: int
    context_length: int
    pool_tokens: int
    """Tokens that the KV pool holds."""
    allow_auto_truncate: bool = False

    def check(self, request: GenerateRequest) -> GenerateRequest:
        """Return `request`, its prompt cut if need be; raises RequestError."""
        check_sampling(request.sampling)
        self._check_ids(request.prompt_ids)
        length = len(request.prompt_ids)
        limit = min(self.context_length, self.pool_tokens)
        if length < limit:
            return request
        if not self.allow_auto_truncate:
            raise self._too_long(length)
        return self._truncate(request, limit)

    def _check_ids(self, prompt_ids: tuple[int, ...]) -> None:
        if not prompt_ids:
            raise RequestError("the prompt is empty; give at least one token", param="prompt", code="empty_prompt")
        low, high = min(prompt_ids), max(prompt_ids)
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            message = f"token id {wrong} is outside the vocabulary; use 0 to {self.vocab_size - 1}"
            raise RequestError(message, param="prompt", code="invalid_token_id")

    def _too_long(self, length: int) -> RequestError:
        if length >= self.context_length:
            message = (
                f"the prompt has {length} tokens, the context length is {self.context_length} with at least one for "
                f"the answer; shorten the prompt to at most {self.context_length - 1} tokens"
            )
            return RequestError(message, param="prompt", code="context_length_exceeded")
        message = (
            f"the prompt has {length} tokens, the KV pool holds {self.pool_tokens} with at least one for the answer; "
            "shorten the prompt or raise `runtime.mem_fraction_static` or `runtime.max_total_tokens`"
        )
        return RequestError(message, param="prompt", code="kv_pool_exceeded")

    def _truncate(self, request: GenerateRequest, limit: int) -> GenerateRequest:
        wanted = limit // 4 if request.sampling.max_new_tokens is None else request.sampling.max_new_tokens
        kept = limit - max(1, min(wanted, limit // 2))
        if kept < 1:
            raise self._too_long(len(request.prompt_ids))
        logger.warning(
            "request %s: prompt cut from %d to its last %d tokens", request.request_id, len(request.prompt_ids), kept
        )
        return replace(request, prompt_ids=request.prompt_ids[-kept:])


def check_sampling(sampling: SamplingParams) -> None:
    """Raise RequestError, naming the field, unless every field of `sampling` is in its range."""
    if sampling.max_new_tokens is not None and sampling.max_new_tokens < 1:
        raise _refuse("max_new_tokens", sampling.max_new_tokens, "at least 1")
    if not 0 <= sampling.temperature < math.inf:
        raise _refuse("temperature", sampling.temperature, "0 or more")
    if not 0 < sampling.top_p <= 1:
        raise _refuse("top_p", sampling.top_p, "above 0 and at most 1")
    if sampling.top_k != -1 and sampling.top_k < 1:
        raise _refuse("top_k", sampling.top_k, "-1 (all tokens) or at least 1")
    if "" in sampling.stop:
        raise _refuse("stop", "", "strings of at least one character")


def _refuse(param: str, given: object, allowed: str) -> RequestError:
    return RequestError(f"{param}={given!r} is not allowed; use {allowed}", param=param, code="invalid_value")
