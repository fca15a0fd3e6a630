"""Logprobs and echo in the forms of every route, streamed or not."""

import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from sglk.testing.tiny import tiny_config
from tests.models.greedy import tiny_runner
from tests.server.serving import MODEL, Served, error_of, serving

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
TEXT = "héllo 你好"
HELLO = [{"role": "user", "content": TEXT}]
EIGHT = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    """A server of the tiny model: every byte is a token, 60 of 320 tokens have no text."""
    with serving(tiny_runner(tiny_config()), max_total_tokens=2048) as running:
        yield running


def strict(value: Any) -> Any:
    """Return what JSON makes of `value`; NaN and infinities are errors."""
    return json.loads(json.dumps(value, allow_nan=False))


def joined(chunks: list[Any], index: int = 0) -> tuple[str, dict[str, list[Any]]]:
    """Return the text and the logprobs of one streamed completion."""
    mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
    told: dict[str, list[Any]] = {}
    for part in mine:
        for name, values in (part["logprobs"] or {}).items():
            told.setdefault(name, []).extend(values)
    return "".join(part["text"] for part in mine), told


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_a_completion_has_one_entry_per_token(tiny: Served, count: int) -> None:
    body = tiny.post(COMPLETIONS, {"prompt": TEXT, **EIGHT, "logprobs": count}).json()
    logprobs = strict(body["choices"][0]["logprobs"])

    assert {len(values) for values in logprobs.values()} == {8} == {body["usage"]["completion_tokens"]}
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob <= 0
        # The token is greedy, so it is the likeliest.
        assert len(top) == max(count, 1)
        assert max(top.values()) == logprob
        assert sum(map(math.exp, top.values())) <= 1.0001


@pytest.mark.parametrize("stop", [None, "never"])
def test_a_stream_has_the_same_entries(tiny: Served, stop: str | None) -> None:
    body = {"prompt": [TEXT, "b"], **EIGHT, "logprobs": 3, "stop": stop}
    plain = tiny.post(COMPLETIONS, body).json()
    chunks = tiny.events(COMPLETIONS, body)

    for choice in plain["choices"]:
        assert joined(chunks, choice["index"]) == (choice["text"], choice["logprobs"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [TEXT, list(TEXT.encode())])
def test_echo_repeats_the_prompt_and_scores_it(tiny: Served, prompt: Any, stream: bool) -> None:
    body = {"prompt": prompt, **EIGHT, "logprobs": 2, "echo": True}
    if stream:
        text, logprobs = joined(tiny.events(COMPLETIONS, body))
    else:
        (choice,) = tiny.post(COMPLETIONS, body).json()["choices"]
        text, logprobs = choice["text"], choice["logprobs"]
    size = len(TEXT.encode())

    assert text.startswith(TEXT)
    assert {len(values) for values in logprobs.values()} == {size + 8}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert None not in logprobs["token_logprobs"][1:]
    assert logprobs["tokens"][:3] == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    # Characters that are complete before each token.
    assert logprobs["text_offset"][: size + 1] == [0, 1, 1, 2, 3, 4, 5, 6, 6, 6, 7, 7, 7, 8]


def test_echo_scores_alike_with_and_without_the_cache(tiny: Served) -> None:
    body = {"prompt": "cache " * 20, **EIGHT, "logprobs": 2, "echo": True, "max_tokens": 1}
    warm = [tiny.post(COMPLETIONS, body).json()["choices"] for _ in range(2)]
    assert tiny.post("/flush_cache").status_code == 200
    cold = tiny.post(COMPLETIONS, body).json()["choices"]

    assert warm[0] == warm[1] == cold


def test_echo_alone_and_nothing_new(tiny: Served) -> None:
    body = {"prompt": ["one", "two"], "echo": True, "max_tokens": 0, "n": 2}
    plain, scored = (tiny.post(COMPLETIONS, {**body, "logprobs": count}).json() for count in (None, 1))

    for answer in (plain, scored):
        assert [choice["text"] for choice in answer["choices"]] == ["one", "one", "two", "two"]
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
        assert answer["usage"]["completion_tokens"] == 0
    assert {len(choice["logprobs"]["tokens"]) for choice in scored["choices"]} == {3}
    assert joined(tiny.events(COMPLETIONS, body), 2)[0] == "two"


def test_chat_has_one_entry_per_token_with_its_bytes(tiny: Served) -> None:
    body = {"messages": HELLO, **EIGHT, "logprobs": True, "top_logprobs": 5}
    # The second answer and the third find the same prefix in the cache, so that all their numbers are equal.
    (choice,) = [strict(tiny.post(CHAT, body).json()["choices"][0]) for _ in range(2)][1:]
    chunks = tiny.events(CHAT, body)
    content = choice["logprobs"]["content"]

    assert len(content) == 8
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["bytes"] is None or all(0 <= byte <= 255 for byte in entry["bytes"])
        assert len(entry["top_logprobs"]) == 5
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
    streamed = [part["logprobs"] for chunk in chunks for part in chunk["choices"] if part["logprobs"]]
    assert [entry for part in streamed for entry in part["content"]] == content


def test_chat_without_the_likeliest(tiny: Served) -> None:
    body = {"messages": HELLO, **EIGHT, "logprobs": True, "n": 2}
    for choice in tiny.post(CHAT, body).json()["choices"]:
        assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[]] * 8


@pytest.mark.parametrize("stream", [False, True])
def test_generate_has_sglang_s_form(tiny: Served, stream: bool) -> None:
    ids = list(TEXT.encode())
    body = {
        "input_ids": ids,
        "return_logprob": True,
        "logprob_start_len": 3,
        "top_logprobs_num": 2,
        "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True},
    }
    answer = tiny.events(GENERATE, body)[-1] if stream else tiny.post(GENERATE, body).json()
    meta = strict(answer["meta_info"])

    assert [token for _, token, _ in meta["input_token_logprobs"]] == ids[3:]
    assert meta["input_token_logprobs"][0] == [None, ids[3], None]
    assert meta["input_top_logprobs"][0] is None
    assert all(len(top) == 2 for top in meta["input_top_logprobs"][1:])
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert [top[0] for top in meta["output_top_logprobs"]] == meta["output_token_logprobs"]


def test_generate_by_default_scores_the_answer_alone(tiny: Served) -> None:
    sampling = {"max_new_tokens": 3, "ignore_eos": True}
    body = {"text": "x", "return_logprob": True, "return_text_in_logprobs": True, "sampling_params": sampling}
    meta = tiny.post(GENERATE, body).json()["meta_info"]

    assert meta["input_token_logprobs"] == []
    assert all(isinstance(text, str) for _, _, text in meta["output_token_logprobs"])
    assert "output_top_logprobs" not in meta
    assert "output_token_logprobs" not in tiny.post(GENERATE, {"text": "x"}).json()["meta_info"]


def test_generate_takes_one_wish_per_prompt(tiny: Served) -> None:
    body = {
        "text": ["abc", "abc"],
        "return_logprob": [True, False],
        "logprob_start_len": [0, -1],
        "top_logprobs_num": 1,
        "sampling_params": {"max_new_tokens": 0},
    }
    first, second = tiny.post(GENERATE, body).json()

    assert len(first["meta_info"]["input_token_logprobs"]) == 3
    assert "input_token_logprobs" not in second["meta_info"]
    assert first["output_ids"] == second["output_ids"] == []


def test_no_request_makes_numbers_that_are_none(tiny: Served) -> None:
    biases = {str(token): -100 for token in range(100)}
    for more in ({"top_k": 1, "temperature": 0.7}, {"logit_bias": biases}, {"top_p": 1e-9}, {"temperature": 1e-9}):
        body = tiny.post(COMPLETIONS, {"prompt": "x", "logprobs": 5, "ignore_eos": True, **more})
        strict(body.json())
        assert len(body.json()["choices"][0]["logprobs"]["tokens"]) == 16
        answer = tiny.post(CHAT, {"messages": HELLO, **EIGHT, "logprobs": True, "top_logprobs": 5, **more})
        assert len(strict(answer.json())["choices"][0]["logprobs"]["content"]) == 8


def test_the_official_client_reads_them(tiny: Served) -> None:
    with openai.DefaultHttpxClient(trust_env=False) as transport:
        client = openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="none", http_client=transport, max_retries=0)
        completion = client.completions.create(model=MODEL, prompt="x", max_tokens=4, logprobs=2, echo=True)
        chat = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            logprobs=True,
            top_logprobs=2,
            response_format={"type": "json_object"},
            max_tokens=4,
            temperature=0,
        )
    assert completion.choices[0].logprobs is not None
    assert len(completion.choices[0].logprobs.tokens or []) == 5
    assert chat.choices[0].logprobs is not None
    assert [len(entry.top_logprobs) for entry in chat.choices[0].logprobs.content or []] == [2] * 4


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"echo": "yes"}, "echo"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"top_logprobs": 5}, "top_logprobs"),
        (CHAT, {"logprobs": 5}, "logprobs"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (GENERATE, {"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        (GENERATE, {"return_logprob": True, "logprob_start_len": 2}, "logprob_start_len"),
        (GENERATE, {"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        (GENERATE, {"return_logprob": [True, True]}, "return_logprob"),
    ],
)
def test_wrong_wishes_are_refused_by_name(tiny: Served, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"messages": HELLO} if path == CHAT else {"prompt": "x", "text": "x"}
    assert error_of(tiny.post(path, {**body, **fields}))["param"] == param
