import pytest

from sglk.errors import RequestError
from sglk.models.chat_messages import plain_messages


def user(content):
    return [{"role": "user", "content": content}]


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "Why is "}, {"type": "text", "text": "it so?"}]
    assert plain_messages(user(parts)) == user("Why is it so?")
    assert plain_messages(user([])) == user("")


def test_nulls_are_left_out_and_other_keys_kept():
    message = {"role": "assistant", "content": None, "name": "x", "refusal": None}
    assert plain_messages([message]) == [{"role": "assistant", "content": "", "name": "x"}]


def test_arguments_of_tool_calls_become_objects():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    [message] = plain_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": [1]}}
    assert call["function"]["arguments"] == '{"a": [1]}'
    already = {"function": {"name": "f", "arguments": {"a": 1}}}
    assert plain_messages([{"role": "assistant", "tool_calls": [already]}])[0]["tool_calls"] == [already]


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        ([], "messages", "empty"),
        (["hello"], "messages[0]", "object with a `role`"),
        ([{"content": "x"}], "messages[0]", "object with a `role`"),
        ([{"role": 7, "content": "x"}], "messages[0]", "object with a `role`"),
        ([{"role": "user"}], "messages[0].content", "is missing; give a text or a list of parts"),
        ([*user("x"), {"role": "tool", "content": None}], "messages[1].content", "is missing"),
        (user(7), "messages[0].content", "a text or a list of parts"),
        (user(["x"]), "messages[0].content[0]", "type None; this model reads only parts of type 'text'"),
        (user([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0]", "type 'image_url'"),
        (user([{"type": "text"}]), "messages[0].content[0]", "must be a text"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls", "list of objects"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "messages[0].tool_calls[0]",
            "not valid JSON",
        ),
    ],
)
def test_what_is_no_text_is_refused_by_name(messages, param, message):
    with pytest.raises(RequestError, match=message) as raised:
        plain_messages(messages)
    assert (raised.value.param, raised.value.status) == (param, 400)


@pytest.mark.parametrize("arguments", ["[" * 100_000, '"\\ud800"', "{", "1" * 5000])
def test_arguments_that_are_no_good_json_are_refused(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(RequestError, match="is not valid JSON"):
        plain_messages([{"role": "assistant", "tool_calls": [call]}])
