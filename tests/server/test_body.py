import json
import socket

import pytest
from pydantic import ValidationError

from sglk.server import body
from sglk.server.native_schema import GenerateBody
from sglk.server.openai_schema import ChatBody, CompletionBody
from tests.server.serving import Served, error_of

PATH = "/v1/completions"
ROUTES = (PATH, "/v1/chat/completions", "/generate")
NESTED = "[" * 100_000


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "content",
    [b"", b"  ", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", NESTED.encode(), b'{"prompt": "\\ud800"}', b"{'a': 1}"],
)
def test_what_is_no_json_object_is_refused(served: Served, path: str, content: bytes) -> None:
    error_of(served.client.post(path, content=content))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -5),
        ("max_tokens", 1.5),
        ("max_tokens", "10"),
        ("max_tokens", True),
        ("max_tokens", [1]),
        ("temperature", -0.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", 0),
        ("top_k", -2),
        ("top_k", 1.5),
        ("seed", 2**63),
        ("seed", "7"),
        ("stream", "yes"),
        ("stream_options", []),
        ("ignore_eos", 1),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", 5),
        ("model", 5),
    ],
)
def test_a_wrong_value_is_refused_by_name(served: Served, field: str, value: object) -> None:
    error = error_of(served.post(PATH, {"prompt": "x", field: value}))

    assert error["param"] == field
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(served: Served, number: str) -> None:
    content = f'{{"prompt": "x", "temperature": {number}}}'

    assert error_of(served.client.post(PATH, content=content))["param"] == "temperature"


@pytest.mark.parametrize(
    "prompt",
    ["", [], [""], [[]], ["a", ""], [[65], []], None, 5, {}, [1.5], [True], ["a", 1], [-1], [320], [[1], "a"], [2**70]],
)
def test_a_wrong_prompt_is_refused(served: Served, prompt: object) -> None:
    assert error_of(served.post(PATH, {"prompt": prompt}))["param"] == "prompt"


def test_a_missing_prompt_is_named(served: Served) -> None:
    error = error_of(served.post(PATH, {}))

    assert error["param"] == "prompt"
    assert error["code"] == "missing_parameter"


def test_a_nested_field_is_named_in_full(served: Served) -> None:
    error = error_of(served.post("/generate", {"text": "x", "sampling_params": {"top_p": 2}}))

    assert error["param"] == "sampling_params.top_p"


def test_null_means_the_default(served: Served) -> None:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "n", "stop", "stop_token_ids", "stream", "model")
    given = served.post(PATH, {"prompt": "x", **dict.fromkeys(names)})

    assert given.status_code == 200
    assert given.json()["usage"]["completion_tokens"] <= 16


def test_unknown_fields_are_ignored(served: Served) -> None:
    assert served.post(PATH, {"prompt": "x", "user": "me", "metadata": {"a": 1}, "future": [1]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (PATH, "suffix", "end"),
        (PATH, "best_of", 2),
        (PATH, "prompt_logprobs", 1),
        (PATH, "min_new_tokens", 5),
        (PATH, "guided_json", {"type": "object"}),
        ("/v1/chat/completions", "tools", [{"type": "function"}]),
        ("/generate", "token_ids_logprob", [1]),
        ("/generate", "lora_path", "adapter"),
    ],
)
def test_features_that_are_missing_are_not_ignored(served: Served, path: str, field: str, value: object) -> None:
    messages = [{"role": "user", "content": "x"}]
    error = error_of(served.post(path, {"prompt": "x", "messages": messages, "text": "x", field: value}))

    assert error["param"] == field
    assert error["code"] == "unsupported_parameter"


def test_neutral_values_of_missing_features_are_fine(served: Served) -> None:
    neutral = {"best_of": 1, "echo": False, "suffix": "", "logit_bias": {}, "presence_penalty": 0.0, "logprobs": None}

    assert served.post(PATH, {"prompt": "x", "max_tokens": 1, **neutral}).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch, chunked: bool) -> None:
    monkeypatch.setattr(body, "MAX_BODY_BYTES", 1000)
    content = json.dumps({"prompt": "x" * 2000}).encode()
    response = served.client.post(PATH, content=iter([content]) if chunked else content)

    assert error_of(response, 413)["code"] == "body_too_large"


def test_a_strange_content_type_does_not_matter(served: Served) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response = served.client.post(PATH, content=b'{"prompt": "x", "max_tokens": 1}', headers=headers)

    assert response.status_code == 200


def test_bad_requests_leave_others_alone(served: Served) -> None:
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    alone = served.post(PATH, body).json()["choices"][0]["text"]
    with served.client.stream("POST", PATH, json={**body, "stream": True}) as response:
        chunks = response.iter_lines()
        first = next(chunks)
        prompts: list[object] = ["", [], [[]], ["a", 1]]
        for prompt in prompts:
            error_of(served.post(PATH, {"prompt": prompt}))
        lines = [first, *chunks]
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines if line and line != "data: [DONE]"]

    assert "".join(texts) == alone


def test_unknown_routes_and_methods_get_the_same_body(served: Served) -> None:
    assert "/v2/nothing" in error_of(served.get("/v2/nothing"), 404)["message"]
    assert "takes POST, not GET" in error_of(served.get(PATH), 405)["message"]
    refusal = served.client.put("/admin/ramp")
    assert refusal.headers["allow"] == "GET, POST, DELETE"
    assert "takes GET, POST, DELETE, not PUT" in error_of(refusal, 405)["message"]


@pytest.mark.parametrize(
    ("shape", "content"),
    [
        (CompletionBody, {"prompt": [True] * 5000}),
        (CompletionBody, {"prompt": [1.5] * 5000}),
        (CompletionBody, {"prompt": [[True]] * 5000}),
        (CompletionBody, {"prompt": "x", "stop": [1] * 5000, "stop_token_ids": ["a"] * 5000, "choice": [1] * 4000}),
        (CompletionBody, {"prompt": "x", "logit_bias": {f"{key}": "wrong" for key in range(5000)}}),
        (ChatBody, {"messages": [1] * 5000}),
        (GenerateBody, {"text": [1] * 5000, "input_ids": [[True]] * 5000, "rid": [1] * 5000}),
        (GenerateBody, {"sampling_params": [1] * 5000, "return_logprob": [1] * 5000}),
        (GenerateBody, {"logprob_start_len": [-2] * 5000, "top_logprobs_num": [99] * 5000}),
    ],
)
def test_many_wrong_entries_make_few_errors(shape: type[body.Body], content: object) -> None:
    with pytest.raises(ValidationError) as raised:
        shape.model_validate_json(json.dumps(content))

    assert raised.value.error_count() <= 12


@pytest.mark.parametrize("entry", ["x", []])
def test_a_list_of_too_many_prompts_is_refused_by_name(served: Served, entry: object) -> None:
    error = error_of(served.post(PATH, {"prompt": [entry] * (body.MAX_ENTRIES + 1)}))

    assert error["param"] == "prompt"
    assert len(error["message"]) < 300


def test_a_client_that_falls_silent_in_its_body_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "PAUSE_S", 0.01)
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        answer = b"".join(iter(lambda: client.recv(4096), b""))

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_incomplete"' in answer


def test_the_rest_of_a_body_that_was_refused_is_not_read(served: Served) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=120) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n{")
        answer = b"".join(iter(lambda: client.recv(4096), b""))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in answer


def test_a_body_may_come_in_many_pieces(served: Served) -> None:
    content = b'{"prompt": "x", "max_tokens": 1}'
    pieces = (content[place : place + 5] for place in range(0, len(content), 5))

    assert served.client.post(PATH, content=pieces).status_code == 200
