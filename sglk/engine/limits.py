"""What a request may ask of an engine."""

import logging
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from operator import attrgetter

import numpy as np

from sglk.engine.messages import GenerateRequest, Grammar, SamplingParams
from sglk.errors import RequestError

logger = logging.getLogger(__name__)

MAX_LOGPROBS = 20
"""Most of the likeliest tokens that are reported beside each token, as in the OpenAI API."""

MAX_STOP_CHARACTERS = 1024
"""Looking for a stop string that comes in pieces takes memory for each of its beginnings."""

_INTEGERS = ("max_new_tokens", "min_new_tokens", "top_k", "seed", "logprobs", "prompt_logprobs_start")
_OPTIONAL = ("max_new_tokens", "seed", "logprobs", "prompt_logprobs_start")
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_FIELDS = (*_INTEGERS, *_NUMBERS)
_PLAIN = {
    *((name, int) for name in _INTEGERS),
    *((name, type(None)) for name in _OPTIONAL),
    *((name, float) for name in _NUMBERS),
}
"""Fields with types of Python's own that are right for them; a whole number may be too large for a float."""
_values_of = attrgetter(*_FIELDS)


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
        sampling = request.sampling
        check_sampling(sampling)
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        self._check_ids("logit_bias", [token for token, _ in sampling.logit_bias])
        if sampling.logprobs is not None and sampling.logprobs > self.vocab_size:
            raise _refuse("logprobs", sampling.logprobs, f"0 to {self.vocab_size}, the size of the vocabulary")
        request = self._fit(request)
        start, length = sampling.prompt_logprobs_start, len(request.prompt_ids)
        if start is not None and start >= length:
            raise _refuse("prompt_logprobs_start", start, f"a position in the prompt, 0 to {length - 1}")
        return request

    def _fit(self, request: GenerateRequest) -> GenerateRequest:
        if not request.prompt_ids:
            raise RequestError("the prompt is empty; give at least one token", param="prompt", code="empty_prompt")
        self._check_ids("prompt", request.prompt_ids)
        length = len(request.prompt_ids)
        limit = min(self.context_length, self.pool_tokens)
        if length < limit:
            return request
        if not self.allow_auto_truncate:
            raise self._too_long(length)
        return self._truncate(request, limit)

    def _check_ids(self, param: str, ids: Sequence[int]) -> None:
        if not ids:
            return
        try:
            whole = ids if isinstance(ids, array) and ids.typecode == "I" else array("I", ids)
            low, high = 0, int(np.maximum.reduce(np.frombuffer(whole, np.uintc)))
        except OverflowError:
            low, high = min(ids), max(ids)
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            message = f"token id {wrong} is outside the vocabulary; use 0 to {self.vocab_size - 1}"
            raise RequestError(message, param=param, code="invalid_token_id")

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
    _check_types(sampling)
    _check_lengths(sampling)
    if not 0 <= sampling.temperature < math.inf:
        raise _refuse("temperature", sampling.temperature, "0 or more")
    if not 0 < sampling.top_p <= 1:
        raise _refuse("top_p", sampling.top_p, "above 0 and at most 1")
    if sampling.top_k != -1 and sampling.top_k < 1:
        raise _refuse("top_k", sampling.top_k, "-1 (all tokens) or at least 1")
    if not 0 <= sampling.min_p <= 1:
        raise _refuse("min_p", sampling.min_p, "0 to 1")
    for text in sampling.stop:
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise _refuse("stop", text[:60], f"strings of 1 to {MAX_STOP_CHARACTERS} characters")
    _check_penalties(sampling)
    _check_logprobs(sampling)


def _check_types(sampling: SamplingParams) -> None:
    """Refuse what Python would let through until it breaks a step of the engine."""
    # Nearly all have plain numbers, which one look finds.
    if not _PLAIN.issuperset(zip(_FIELDS, map(type, _values_of(sampling)), strict=True)):
        _check_numbers(sampling)
    if not isinstance(sampling.ignore_eos, bool):
        raise _refuse("ignore_eos", sampling.ignore_eos, "True or False")
    if any(type(each) is not tuple or each for each in (sampling.stop, sampling.stop_token_ids, sampling.logit_bias)):
        _check_lists(sampling)
    grammar = sampling.grammar
    if grammar is not None and not (isinstance(grammar, Grammar) and isinstance(grammar.text, str)):
        raise _refuse("grammar", grammar, "a Grammar with its text")


def _check_lists(sampling: SamplingParams) -> None:
    if not _is_list(sampling.stop, lambda text: isinstance(text, str)):
        raise _refuse("stop", sampling.stop, "a list of strings")
    if not _is_list(sampling.stop_token_ids, _is_integer):
        raise _refuse("stop_token_ids", sampling.stop_token_ids, "a list of token ids")
    if not _is_list(sampling.logit_bias, _is_bias):
        raise _refuse("logit_bias", sampling.logit_bias, "a list of pairs of a token id and a number")


def _check_numbers(sampling: SamplingParams) -> None:
    for name in _INTEGERS:
        value = getattr(sampling, name)
        if not (_is_integer(value) or (value is None and name in _OPTIONAL)):
            raise _refuse(name, value, "a whole number")
    for name in _NUMBERS:
        if not _is_number(getattr(sampling, name)):
            raise _refuse(name, getattr(sampling, name), "a number")


def _is_integer(value: object) -> bool:
    # The type itself first: a look for an abstract class takes ten times as long.
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_number(value: object) -> bool:
    if type(value) is float:
        return True
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_bias(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and _is_integer(value[0]) and _is_number(value[1])


def _is_list(value: object, fits: Callable[[object], bool]) -> bool:
    return isinstance(value, tuple | list) and all(map(fits, value))


def _check_lengths(sampling: SamplingParams) -> None:
    most, least = sampling.max_new_tokens, sampling.min_new_tokens
    if most is not None and most < 0:
        raise _refuse("max_new_tokens", most, "0 or more")
    if least < 0 or (most is not None and least > most):
        raise _refuse("min_new_tokens", least, "0 or more, up to max_new_tokens")


def _check_penalties(sampling: SamplingParams) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= getattr(sampling, name) <= 2:
            raise _refuse(name, getattr(sampling, name), "-2 to 2")
    if not 0 < sampling.repetition_penalty <= 2:
        raise _refuse("repetition_penalty", sampling.repetition_penalty, "above 0 and at most 2")
    if not sampling.logit_bias:
        return
    for token, bias in sampling.logit_bias:
        if not -100 <= bias <= 100:
            raise _refuse("logit_bias", {token: bias}, "biases from -100 to 100")
    if len(dict(sampling.logit_bias)) < len(sampling.logit_bias):
        raise RequestError("logit_bias names a token twice; give one bias a token", param="logit_bias")


def _check_logprobs(sampling: SamplingParams) -> None:
    count, start = sampling.logprobs, sampling.prompt_logprobs_start
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise _refuse("logprobs", count, f"0 to {MAX_LOGPROBS}")
    if start is not None and (start < 0 or count is None):
        raise _refuse("prompt_logprobs_start", start, "0 or more, together with logprobs")


def _refuse(param: str, given: object, allowed: str) -> RequestError:
    return RequestError(f"{param}={repr(given)[:80]} is not allowed; use {allowed}", param=param, code="invalid_value")
