"""Guided decoding over HTTP, in the words of OpenAI and of SGLang."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sglk.testing.tiny import tiny_config
from tests.models.greedy import tiny_runner
from tests.server.serving import Served, error_of, serving

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "kind": {"enum": ["é", "你好👩"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    with serving(tiny_runner(tiny_config()), max_total_tokens=2048) as running:
        yield running


def check(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"name", "kind"}
    assert len(value["name"]) <= 5
    assert value["kind"] in ("é", "你好👩")


def test_response_format_of_openai(tiny: Served) -> None:
    body = {"messages": HELLO, "response_format": FORMAT, "n": 3, "seed": 4, "max_tokens": 100}
    choices = tiny.post(CHAT, body).json()["choices"]
    for choice in choices:
        check(choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
    deltas = [part for chunk in tiny.events(CHAT, body) for part in chunk["choices"] if part["index"] == 2]
    assert "".join(part["delta"].get("content", "") for part in deltas) == choices[2]["message"]["content"]


def test_any_object(tiny: Served) -> None:
    body = {"prompt": "x", "response_format": {"type": "json_object"}, "max_tokens": 200, "seed": 1}
    choice = tiny.post(COMPLETIONS, body).json()["choices"][0]
    assert choice["text"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["text"]), dict)


@pytest.mark.parametrize(
    ("field", "pattern"),
    [
        ({"regex": "[a-f]{3}-[0-9]+!"}, "[a-f]{3}-[0-9]+!"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"ebnf": 'root ::= "a" | "b" root "c"'}, "b*ac*"),
    ],
)
def test_other_grammars_on_every_route(tiny: Served, field: dict[str, Any], pattern: str) -> None:
    more = {**field, "seed": 5, "temperature": 1}
    texts = [
        tiny.post(COMPLETIONS, {"prompt": "x", "max_tokens": 150, **more}).json()["choices"][0]["text"],
        tiny.post(CHAT, {"messages": HELLO, "max_tokens": 150, **more}).json()["choices"][0]["message"]["content"],
        tiny.post(GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": 150, **more}}).json()["text"],
    ]
    for text in texts:
        assert re.fullmatch(pattern, text) or len(text) == 150


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_schemas_come_as_objects_or_strings(tiny: Served, schema: Any) -> None:
    body = {"text": ["x", "y"], "sampling_params": {"json_schema": schema, "seed": 2}}
    for answer in tiny.post(GENERATE, body).json():
        check(answer["text"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "("}, "regex"),
        ({"regex": ""}, "regex"),
        ({"regex": 5}, "regex"),
        ({"ebnf": "((("}, "ebnf"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": {"type": "foo"}}, "json_schema"),
        ({"json_schema": [1]}, "json_schema"),
        ({"choice": []}, "choice"),
        ({"choice": [""]}, "choice"),
        ({"choice": "yes"}, "choice"),
        ({"regex": "a", "choice": ["b"]}, "choice"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}}}, "response_format"),
    ],
)
def test_wrong_grammars_are_refused_by_name(tiny: Served, fields: dict[str, Any], param: str) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HELLO})):
        assert error_of(tiny.post(path, {**body, **fields}))["param"] == param
    nested = error_of(tiny.post(GENERATE, {"text": "x", "sampling_params": fields}))["param"]
    assert nested.removeprefix("sampling_params.") in (param, "json_schema")
    tiny.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_what_turns_out_too_complex_is_the_request_s_own_fault(tiny: Served, stream: bool) -> None:
    rules = " | ".join(f'"a{number}"' for number in range(3000))
    body = {"prompt": "x", "ebnf": f"start: {rules}", "stream": stream}
    response = tiny.post(COMPLETIONS, body)
    error = response.json()["error"] if not stream else json.loads(response.text.split("\n\n")[-2][6:])["error"]

    assert response.status_code == (200 if stream else 400)
    assert error["code"] == "grammar_too_complex"
    assert error["type"] == "invalid_request_error"


def test_text_is_no_grammar(tiny: Served) -> None:
    body = {"prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    plain, text = (
        tiny.post(COMPLETIONS, {**body, **more}).json()["choices"]
        for more in ({}, {"response_format": {"type": "text"}, "regex": None})
    )
    assert plain == text


def test_the_library_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, sglk.server.serve, sglk.engine.loading; sys.exit('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_the_library_the_answer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglk.engine.grammar.find_spec", lambda name: None)
    with serving() as served:
        error = error_of(served.post(COMPLETIONS, {"prompt": "x", "regex": "a"}))
        assert served.post(COMPLETIONS, {"prompt": "x"}).status_code == 200
    assert error["param"] == "regex"
    assert "pip install 'sglk[guided]'" in error["message"]
