import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from sglk.bench.api import APIS
from sglk.bench.client import Client, Exchange, open_http
from sglk.bench.prompts import Message, Prompt
from tests.bench.mock_server import Call, MockServer, Reply
from tests.bench.streams import CACHED_TOKENS, FRAMINGS, PROMPT_TOKENS, THREE_OF_FIVE, Piece, Usage, events

PROMPT = Prompt(messages=(Message("user", "hello"),))
ALL_APIS = pytest.mark.parametrize("api", list(APIS))
PATHS = {name: api.path for name, api in APIS.items()}


def exchange(server: MockServer, api: str, *, asked: int = 100, timeout_s: float = 30.0) -> Exchange:
    async def send() -> Exchange:
        async with open_http(server.url, "secret") as http:
            return await Client(http, APIS[api], "the-model", timeout_s).send(PROMPT, asked)

    return asyncio.run(send())


def streaming(data: list[str], framing: str = "one event a read") -> Callable[[Call, Reply], Awaitable[None]]:
    async def answer(call: Call, reply: Reply) -> None:
        await reply.stream(FRAMINGS[framing](data))

    return answer


@ALL_APIS
@pytest.mark.parametrize("usage", ["final", "each"])
@pytest.mark.parametrize("framing", list(FRAMINGS))
def test_output_tokens_are_those_that_the_server_reports(api: str, usage: Usage, framing: str) -> None:
    with MockServer(streaming(events(api, THREE_OF_FIVE, usage), framing)) as server:
        got = exchange(server, api)
    assert (got.status, got.error) == ("ok", None)
    assert got.answer.tokens(asked=100) == (15, False)
    assert got.answer.text == "Hello there, how are you?"
    assert got.answer.prompt_tokens == PROMPT_TOKENS
    assert got.answer.cached_tokens == CACHED_TOKENS
    assert got.answer.finish_reason == "stop"
    # Three pieces, so two gaps, whatever events of role, usage and end surround them.
    assert len(got.answer.gaps_s) == 2


@ALL_APIS
def test_without_usage_the_count_is_an_estimate_and_says_so(api: str) -> None:
    with MockServer(streaming(events(api, THREE_OF_FIVE, "none"))) as server:
        got = exchange(server, api)
    assert got.status == "ok"
    count, estimated = got.answer.tokens(asked=100)
    assert estimated
    # 25 characters; neither the limit of 100 nor the three pieces.
    assert count == 7


@ALL_APIS
def test_without_usage_an_answer_cut_for_length_has_the_length_asked_for(api: str) -> None:
    with MockServer(streaming(events(api, THREE_OF_FIVE, "none", finish="length"))) as server:
        got = exchange(server, api, asked=15)
    assert got.answer.tokens(asked=15) == (15, True)


@ALL_APIS
@pytest.mark.parametrize("usage", ["final", "each"])
def test_spaces_are_text(api: str, usage: Usage) -> None:
    pieces: list[Piece] = [(" " * 100, 5), (" " * 100, 5), ("\n" * 100, 5)]
    with MockServer(streaming(events(api, pieces, usage))) as server:
        got = exchange(server, api)
    assert got.answer.tokens(asked=100) == (15, False)
    assert got.answer.first_at is not None
    assert len(got.answer.gaps_s) == 2


@ALL_APIS
@pytest.mark.parametrize("usage", ["final", "each"])
def test_an_answer_of_one_token(api: str, usage: Usage) -> None:
    with MockServer(streaming(events(api, [("x", 1)], usage))) as server:
        got = exchange(server, api)
    assert got.status == "ok"
    assert got.answer.tokens(asked=100) == (1, False)
    assert got.answer.first_at == got.answer.last_at == got.ended_at
    assert got.answer.gaps_s == []


@ALL_APIS
def test_an_answer_of_no_token(api: str) -> None:
    with MockServer(streaming(events(api, [("", 0)], "final"))) as server:
        got = exchange(server, api)
    assert (got.status, got.error) == ("failed", "the answer has no token")
    assert got.answer.tokens(asked=100) == (0, False)
    assert got.answer.first_at is None


@ALL_APIS
def test_an_answer_of_nothing_that_names_its_length_as_the_reason_is_no_answer(api: str) -> None:
    with MockServer(streaming(events(api, [("", 0)], "none", "length"))) as server:
        got = exchange(server, api)
    assert got.status == "failed"
    assert got.answer.tokens(asked=100) == (0, True)


@ALL_APIS
def test_a_token_without_text_counts_when_the_server_counts_it(api: str) -> None:
    # The first token ends inside a character, so its text comes with the second.
    with MockServer(streaming(events(api, [("", 1), ("é", 1)], "each"))) as server:
        got = exchange(server, api)
    assert got.answer.tokens(asked=100) == (2, False)
    assert len(got.answer.gaps_s) == 1


@ALL_APIS
def test_tokens_of_reasoning_are_tokens(api: str) -> None:
    thought = json.dumps({"choices": [{"delta": {"reasoning_content": "hm"}, "text": "hm"}], "text": "hm"})
    with MockServer(
        streaming([thought, *events(api, [("hm, yes" if api == "generate" else "yes", 2)], "final")])
    ) as server:
        got = exchange(server, api)
    assert got.status == "ok"
    assert len(got.answer.gaps_s) == 1


@ALL_APIS
@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (503, {"error": {"message": "too many requests wait", "code": 503}}, "HTTP 503: too many requests wait"),
        (400, {"object": "error", "message": "context is 256"}, "HTTP 400: context is 256"),
        (422, {"detail": [{"msg": "no"}]}, "HTTP 422: [{'msg': 'no'}]"),
        (500, b"Internal\n\nServer Error", "HTTP 500: Internal Server Error"),
        (429, b"", "HTTP 429: Nothing"),
    ],
)
def test_a_refusal_is_a_failure_and_is_not_tried_again(api: str, status: int, body: object, message: str) -> None:
    async def refuse(call: Call, reply: Reply) -> None:
        await reply.json(body, status)

    with MockServer(refuse) as server:
        got = exchange(server, api)
    assert (got.status, got.error) == ("failed", message)
    assert server.paths() == [PATHS[api]]


@ALL_APIS
@pytest.mark.parametrize(
    "error",
    [{"error": {"message": "out of pages"}}, {"error": "out of pages"}, {"object": "error", "message": "out of pages"}],
)
def test_an_error_event_fails_the_request(api: str, error: object) -> None:
    data = events(api, THREE_OF_FIVE, "each")
    data.insert(2, json.dumps(error))
    with MockServer(streaming(data)) as server:
        got = exchange(server, api)
    assert (got.status, got.error) == ("failed", "error in the stream: out of pages")


@ALL_APIS
def test_an_aborted_answer_is_a_failure(api: str) -> None:
    with MockServer(streaming(events(api, THREE_OF_FIVE, "final", finish="abort"))) as server:
        got = exchange(server, api)
    assert got.status == "failed"
    assert got.error is not None
    assert "abort" in got.error


@ALL_APIS
def test_a_dropped_connection_is_a_failure_and_is_not_tried_again(api: str) -> None:
    async def drop(call: Call, reply: Reply) -> None:
        await reply.start()
        await reply.chunk(FRAMINGS["one event a read"](events(api, THREE_OF_FIVE, "each"))[0])
        reply.drop()

    with MockServer(drop) as server:
        got = exchange(server, api)
    assert got.status == "failed"
    assert got.error
    assert server.paths() == [PATHS[api]]


@ALL_APIS
def test_a_stream_that_just_ends_is_a_failure(api: str) -> None:
    data = events(api, THREE_OF_FIVE, "none", finish=None)[:-1]
    with MockServer(streaming(data)) as server:
        got = exchange(server, api)
    assert (got.status, got.error) == ("failed", "the stream ended in the middle of the answer")


@pytest.mark.parametrize("data", ["not json", "[1, 2]", "{"])
def test_an_event_that_cannot_be_read_is_a_failure(data: str) -> None:
    with MockServer(streaming([data, "[DONE]"])) as server:
        got = exchange(server, "completions")
    assert got.status == "failed"
    assert got.error is not None
    assert "the server sent an event that is not" in got.error


@ALL_APIS
def test_a_silent_server_is_a_timeout(api: str) -> None:
    async def hang(call: Call, reply: Reply) -> None:
        await reply.start()
        await asyncio.Event().wait()

    with MockServer(hang) as server:
        got = exchange(server, api, timeout_s=1.0)
    assert (got.status, got.error) == ("timeout", "no complete answer within 1 s")
    assert server.paths() == [PATHS[api]]


def test_an_unreachable_server_is_a_failure() -> None:
    with MockServer(streaming([])) as server:
        pass
    got = exchange(server, "completions")
    assert got.status == "failed"
    assert got.error is not None
    assert got.error.startswith("ConnectError: ")


def test_bodies_ask_for_a_fixed_length_greedy_stream_with_usage() -> None:
    with MockServer(streaming(events("completions", THREE_OF_FIVE, "final"))) as server:
        for api in ("completions", "chat"):
            exchange(server, api, asked=9)
            body = server.sent(PATHS[api])[0]
            assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (9, 0.0, True)
            assert body["model"] == "the-model"
            assert body["stream"] is True
            assert body["stream_options"] == {"include_usage": True}
        exchange(server, "generate", asked=9)
    body = server.sent("/generate")[0]
    assert body["sampling_params"] == {"max_new_tokens": 9, "temperature": 0.0, "ignore_eos": True}
    assert (body["text"], body["stream"]) == ("hello", True)
    assert all(call.headers["authorization"] == "Bearer secret" for call in server.calls)


def test_the_environment_names_no_proxy_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with MockServer(streaming(events("chat", THREE_OF_FIVE, "final"))) as server:
        assert exchange(server, "chat").status == "ok"
