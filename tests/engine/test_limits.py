import logging
from typing import Any

import numpy as np
import pytest

from sglk.engine.limits import Limits
from sglk.engine.messages import GenerateRequest, Grammar, SamplingParams
from sglk.errors import RequestError

LIMITS = Limits(vocab_size=320, context_length=256, pool_tokens=4096)
TRUNCATING = Limits(vocab_size=320, context_length=256, pool_tokens=4096, allow_auto_truncate=True)


def request(length: int, **sampling: Any) -> GenerateRequest:
    return GenerateRequest("r", tuple(index % 256 for index in range(length)), SamplingParams(**sampling))


@pytest.mark.parametrize("length", [256, 300])
def test_prompt_beyond_the_context_names_both_numbers(length: int) -> None:
    with pytest.raises(RequestError, match=f"has {length} tokens, the context length is 256") as caught:
        LIMITS.check(request(length))

    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "prompt")


@pytest.mark.parametrize("length", [1, 250, 255])
def test_prompt_with_room_for_one_token_passes(length: int) -> None:
    assert LIMITS.check(request(length, max_new_tokens=50)) == request(length, max_new_tokens=50)


def test_prompt_beyond_the_pool_says_what_to_raise() -> None:
    small = Limits(vocab_size=320, context_length=256, pool_tokens=64)
    with pytest.raises(RequestError, match=r"has 64 tokens, the KV pool holds 64 .*runtime.max_total_tokens") as caught:
        small.check(request(64))

    assert caught.value.code == "kv_pool_exceeded"


@pytest.mark.parametrize(
    ("length", "max_new_tokens", "kept"),
    [(300, 50, 206), (256, 50, 206), (256, None, 192), (300, 1000, 128), (255, 50, 255)],
)
def test_truncation_keeps_the_end_and_leaves_room(
    length: int, max_new_tokens: int | None, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    asked = request(length, max_new_tokens=max_new_tokens)
    with caplog.at_level(logging.WARNING, logger="sglk"):
        checked = TRUNCATING.check(asked)

    assert checked.prompt_ids == asked.prompt_ids[-kept:]
    assert bool(caplog.records) == (length >= 256)


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        LIMITS.check(request(0))


@pytest.mark.parametrize("token", [-1, 320, 10**9])
def test_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(RequestError, match=f"token id {token} is outside the vocabulary; use 0 to 319"):
        LIMITS.check(GenerateRequest("r", (5, token, 7)))


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_new_tokens", -5),
        ("min_new_tokens", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", float("nan")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 2.1),
        ("logit_bias", ((5, 101.0),)),
        ("logit_bias", ((5, float("nan")),)),
        ("logit_bias", ((5, 1.0), (5, 2.0))),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs_start", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("top_k", 0),
        ("top_k", -2),
        ("stop", ("",)),
        ("stop", ("a", "")),
        ("stop", "END"),
        ("stop", (5,)),
        ("stop", ("x" * 10**6,)),
        ("stop_token_ids", 5),
        ("stop_token_ids", (1.5,)),
        ("stop_token_ids", np.array([5])),
        ("logit_bias", {1: 2.0}),
        ("logit_bias", ((1.5, 1.0),)),
        ("logit_bias", (5,)),
        ("seed", "x"),
        ("max_new_tokens", True),
        ("max_new_tokens", "5"),
        ("min_new_tokens", None),
        ("top_k", 1.5),
        ("logprobs", True),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("ignore_eos", "yes"),
        ("temperature", None),
        ("grammar", "yes|no"),
        ("grammar", Grammar("json_schema", {"type": "integer"})),  # type: ignore[arg-type]
    ],
)
def test_sampling_out_of_range_names_the_field(param: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        LIMITS.check(request(5, **{param: value}))

    assert caught.value.param == param
    assert len(str(caught.value)) < 250
