"""Sampling options over HTTP: what they do, what they refuse, and that no request changes another's answer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sglk.testing.tiny import tiny_config
from tests.models.greedy import tiny_runner
from tests.server.serving import Served, error_of, serving

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
LONG = "The prompt of all choices, long enough for several pages of the pool. " * 2
BANNED = {str(token): -100 for token in range(256)}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    with serving(tiny_runner(tiny_config()), max_total_tokens=4096, page_size=16) as running:
        yield running


def complete(served: Served, **fields: Any) -> Any:
    response = served.post(COMPLETIONS, {"prompt": "x", "max_tokens": 12, "ignore_eos": True, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def tokens(served: Served, **sampling: Any) -> list[int]:
    body = {"text": "x", "sampling_params": {"max_new_tokens": 12, "ignore_eos": True, **sampling}}
    answer: list[int] = served.post(GENERATE, body).json()["output_ids"]
    return answer


def test_a_bias_of_100_forces_and_of_minus_100_forbids(tiny: Served) -> None:
    assert complete(tiny, logit_bias={"65": 100})["choices"][0]["text"] == "A" * 12
    assert min(tokens(tiny, logit_bias=BANNED)) > 255


def test_penalties_vary_an_answer(tiny: Served) -> None:
    three = {"temperature": 0, "logit_bias": {str(token): -100 for token in range(320) if token not in (65, 66, 67)}}
    plain = tokens(tiny, **three)
    assert len(set(plain)) < 3
    for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 2}):
        assert len(set(tokens(tiny, **three, **penalty))) == 3


@pytest.mark.parametrize("stop", [{"stop_token_ids": [65]}, {"stop": "A"}])
def test_min_tokens_holds_the_end_back(tiny: Served, stop: dict[str, Any]) -> None:
    body = {"prompt": "x", "logit_bias": {"65": 100}, **stop, "max_tokens": 12}
    first = tiny.post(COMPLETIONS, body).json()
    later = tiny.post(COMPLETIONS, {**body, "min_tokens": 5}).json()

    assert first["usage"]["completion_tokens"] == 1
    assert later["usage"]["completion_tokens"] == 6
    assert later["choices"][0]["finish_reason"] == "stop"


def test_every_row_of_a_mixed_batch_equals_that_request_alone(tiny: Served) -> None:
    wishes: list[dict[str, Any]] = [
        {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": 3}
        for temperature in (0, 1e-9, 1e-4, 1.0, 2.0)
        for top_p, top_k in ((1e-9, -1), (1.0, 1), (1.0, 10**6))
    ]
    wishes += [
        {"temperature": 1.0, "seed": 4, "logit_bias": {str(token): -100 for token in range(0, 320, 2)}},
        {"temperature": 1.0, "seed": 5, "min_p": 0.3, "presence_penalty": 1, "logprobs": 3},
        {"temperature": 1.0, "seed": 6, "repetition_penalty": 1.7, "frequency_penalty": -1, "regex": "[a-z]*"},
    ]
    alone = [complete(tiny, **wish)["choices"][0]["text"] for wish in wishes]
    with ThreadPoolExecutor(len(wishes)) as pool:
        together = [answer["choices"][0]["text"] for answer in pool.map(lambda wish: complete(tiny, **wish), wishes)]

    assert together == alone
    # Greedy in fact: a tiny temperature, one candidate, or almost no mass.
    assert len({*alone[:11], *alone[12:14]}) == 1


def test_the_choices_of_a_prompt_share_its_computation(tiny: Served) -> None:
    tiny.post("/flush_cache")
    before = tiny.deployment.fleet.first.stats()
    body = {"prompt": LONG, "n": 4, "temperature": 1, "seed": 1, "max_tokens": 4, "ignore_eos": True}
    answer = tiny.post(COMPLETIONS, body).json()
    after = tiny.deployment.fleet.first.stats()
    whole_pages = (len(LONG) - 1) // 16 * 16

    assert after.cached_prompt_tokens - before.cached_prompt_tokens == 3 * whole_pages
    assert answer["usage"]["prompt_tokens"] == len(LONG)
    assert len({choice["text"] for choice in answer["choices"]}) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("presence_penalty", "1"),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 2.1),
        ("min_tokens", -1),
        ("min_tokens", 13),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"320": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"5": 1, "05": 2}),
        ("logit_bias", {str(token): 0 for token in range(1025)}),
        ("logit_bias", [[5, 1]]),
        ("stop_token_ids", [320]),
        ("stop_token_ids", [-1]),
        ("best_of", 3),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(tiny: Served, field: str, value: object) -> None:
    messages = [{"role": "user", "content": "x"}]
    for path in (COMPLETIONS, CHAT):
        body = {"prompt": "x", "messages": messages, "max_tokens": 12, field: value}
        assert error_of(tiny.post(path, body))["param"] == field


def test_neutral_values_change_nothing(tiny: Served) -> None:
    neutral = {
        "min_p": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1,
        "logit_bias": {},
        "min_tokens": 0,
        "echo": False,
        "logprobs": None,
        "response_format": {"type": "text"},
    }
    plain, given = (complete(tiny, temperature=1, seed=8, **more)["choices"] for more in ({}, neutral))
    assert plain == given
    assert complete(tiny, temperature=1, seed=8, **dict.fromkeys(neutral))["choices"] == plain


def test_a_bias_for_an_absurdly_long_number_is_refused(served: Served) -> None:
    error = error_of(served.post("/v1/completions", {"prompt": "x", "logit_bias": {"9" * 5000: 1}}))

    assert error["param"] == "logit_bias"
