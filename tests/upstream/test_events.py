"""Streams of every API that engines speak: what is their end, and what they tell of usage."""

import json
from collections.abc import Iterator

import pytest

from sglk.upstream.events import Events

USAGE = {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}}
COMPLETED = {"type": "response.completed", "response": {"error": None, "text": "x" * 10000, "usage": USAGE}}


def named(event: dict[str, object]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def pieces(stream: str, size: int) -> Iterator[bytes]:
    data = stream.encode()
    return (data[at : at + size] for at in range(0, len(data), size))


def taken(stream: str, size: int) -> tuple[Events, int]:
    events = Events()
    return events, sum(map(events.feed, pieces(stream, size)))


@pytest.mark.parametrize("size", [1, 7, 100000])
@pytest.mark.parametrize(
    ("path", "last", "complete"),
    [
        ("/v1/completions", "data: [DONE]\n\n", True),
        ("/v1/completions?x=1", "data: [DONE]", True),
        ("/v1/completions", 'data: {"error": {"message": "out of memory"}}\n\n', True),
        ("/v1/completions", 'data: {"error": null, "choices": []}\n\n', False),
        ("/generate", 'data: {"text": "[DONE]"}\n\n', False),
        ("/generate", "", False),
        ("/v1/messages", named({"type": "message_stop"}), True),
        ("/v1/messages", named({"type": "content_block_stop"}), False),
        ("/v1/responses", named(COMPLETED), True),
        ("/v1/responses", named({"type": "response.created", "response": {"error": None}}), False),
        ("/v1/audio/speech", named({"type": "whatever"}), True),
    ],
)
def test_a_stream_is_complete_by_the_last_event_of_its_api(path: str, last: str, complete: bool, size: int) -> None:
    begin = 'data: {"choices": [{"text": "a"}]}\n\n: still there\n\n'
    for stream in (begin + last, (begin + last).replace("\n", "\r\n")):
        events, count = taken(stream, size)
        assert events.is_complete(path) is complete
        assert count == stream.count("data:") - (not stream.endswith("\n"))


@pytest.mark.parametrize(
    "stream",
    [
        named(COMPLETED),
        f'data: {{"usage": {json.dumps(USAGE)}}}\n\ndata: {{"usage": null}}\n\ndata: [DONE]\n\n',
        f'data: {{"meta_info": {json.dumps(USAGE)}}}\n\ndata: [DONE]\n\n',
        named({"type": "message_delta", "usage": USAGE}) + named({"type": "message_stop"}),
    ],
)
def test_usage_has_the_names_of_completions(stream: str) -> None:
    usage = taken(stream, 50)[0].usage()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 2)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
