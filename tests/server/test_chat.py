import pytest

from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import Served, error_of, scripted_answers, serving

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def test_the_template_is_what_the_model_reads() -> None:
    seen: list[tuple[int, ...]] = []

    def script(prompt: tuple[int, ...]) -> list[int]:
        seen.append(prompt)
        return list(b"hi")

    with serving(ScriptedRunner(script=script)) as served:
        body = served.post(PATH, {"messages": HELLO}).json()

    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hi", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    # <|im_start|> and <|im_end|> are one token each, and no start token is added before them.
    expected = (258, *b"user\nhello", 259, *b"\n", 258, *b"assistant\n")
    assert seen[0] == expected
    assert body["usage"]["prompt_tokens"] == len(expected)


def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    with serving(ScriptedRunner(script=scripted_answers("hi there"))) as served:
        chunks = served.events(PATH, {"messages": HELLO, "n": 2, "stream_options": {"include_usage": True}})

    for index in (0, 1):
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in mine) == "hi there"
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 18


def test_n_answers_count_the_prompt_once(served: Served) -> None:
    one, two = [served.post(PATH, {"messages": HELLO, "n": n, "max_tokens": 4}).json() for n in (1, 2)]

    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_hold(served: Served, field: str) -> None:
    body = served.post(PATH, {"messages": HELLO, field: 3, "ignore_eos": True}).json()

    assert body["usage"]["completion_tokens"] == 3


def test_without_limit_the_answer_may_fill_the_context(served: Served) -> None:
    body = served.post(PATH, {"messages": HELLO, "ignore_eos": True}).json()

    assert body["usage"]["total_tokens"] == 256


def test_a_chat_beyond_the_context_is_refused_like_a_prompt(served: Served) -> None:
    error = error_of(served.post(PATH, {"messages": [{"role": "user", "content": "x" * 300}]}))

    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert "256" in error["message"]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hello",
        [5],
        [{}],
        [{"content": "x"}],
        [{"role": 5, "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user"}],
    ],
)
def test_wrong_messages_are_refused(served: Served, messages: object) -> None:
    assert (error_of(served.post(PATH, {"messages": messages}))["param"] or "").startswith("messages")


def test_text_parts_are_joined(served: Served) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    limits = {"max_tokens": 6, "temperature": 0}
    joined = served.post(PATH, {"messages": [{"role": "user", "content": parts}], **limits}).json()
    plain = served.post(PATH, {"messages": HELLO, **limits}).json()

    assert joined["choices"] == plain["choices"]


def test_the_developer_role_is_the_system_role(served: Served) -> None:
    limits = {"max_tokens": 6, "temperature": 0}
    answers = [
        served.post(PATH, {"messages": [{"role": role, "content": "be brief"}, *HELLO], **limits}).json()["choices"]
        for role in ("system", "developer")
    ]

    assert answers[0] == answers[1]


def test_without_template_chat_says_how_to_give_one_and_completions_work() -> None:
    with serving(chat_template=None) as served:
        error = error_of(served.post(PATH, {"messages": HELLO}))
        completion = served.post("/v1/completions", {"prompt": "x", "max_tokens": 1})

    assert error["code"] == "no_chat_template"
    assert "server.chat_template" in error["message"]
    assert completion.status_code == 200


def test_a_template_s_own_refusal_reaches_the_client() -> None:
    template = "{{ raise_exception('no system role here') if messages[0].role == 'system' else 'x' }}"
    with serving(chat_template=template) as served:
        error = error_of(served.post(PATH, {"messages": [{"role": "system", "content": "x"}]}))

    assert error["message"] == "no system role here"


def test_template_variables_cannot_replace_the_messages(served: Served) -> None:
    error = error_of(served.post(PATH, {"messages": HELLO, "chat_template_kwargs": {"messages": []}}))

    assert error["param"] == "chat_template_kwargs"


def test_template_variables_may_have_any_name(served: Served) -> None:
    for name in ("self", "cls", "variables", "context", ""):
        body = {"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": {name: 1}}
        assert served.post(PATH, body).status_code == 200


def test_a_template_that_makes_no_text_is_refused() -> None:
    with serving(chat_template="x{{ '\\ud800' }}") as served:
        error = error_of(served.post(PATH, {"messages": HELLO}))

    assert (error["param"], error["code"]) == ("messages", "invalid_value")
