"""Conversations: what they send back, and what becomes of turns after a failed one."""

import pytest

from sglk.bench.run import measure
from sglk.bench.target import Target
from sglk.config.bench_schema import LoadConfig
from sglk.errors import ConfigError
from tests.bench.cached_server import CachedServer
from tests.bench.mock_server import Call, MockServer, Reply
from tests.bench.running import MODELS, measured, run, workload
from tests.bench.streams import FRAMINGS, THREE_OF_FIVE, events


def test_a_conversation_resends_the_answers_that_it_got() -> None:
    async def answer(call: Call, reply: Reply) -> None:
        text = f"answer {len(call.body['messages'])}"
        await reply.stream(FRAMINGS["one event a read"](events("chat", [(text, 4)], "final")))

    config = workload("chat", turns=3, num_requests=7, prefix_len=20, num_prefixes=2, warmup_requests=1, concurrency=3)
    with MockServer(answer, MODELS) as server:
        record = run(server, config)
    assert record.load.api == "chat"
    assert record.counts.completed == 7
    bodies = server.sent("/v1/chat/completions")[-7:]
    last = next(body["messages"] for body in bodies if len(body["messages"]) == 6)
    assert [message["role"] for message in last] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in last if message["role"] == "assistant"] == ["answer 2", "answer 4"]
    assert [body["messages"] for body in bodies if body["messages"] == last[:4]] == [last[:4]]


def test_halves_of_a_character_are_joined_before_they_are_sent_back() -> None:
    async def answer(call: Call, reply: Reply) -> None:
        halves = [("\ud83d", 1), ("\ude00", 1), ("\ud83d", 1)]
        await reply.stream(FRAMINGS["one event a read"](events("chat", halves, "final")))

    with MockServer(answer, MODELS) as server:
        assert run(server, workload("chat", turns=2, num_requests=2, warmup_requests=0)).valid
    assert server.sent("/v1/chat/completions")[-1]["messages"][-2]["content"] == "\U0001f600\ufffd"


@pytest.mark.parametrize("sessions", [False, True])
def test_a_conversation_names_itself_where_it_is_asked_to(sessions: bool) -> None:
    config = workload("chat", turns=2, num_requests=4, warmup_requests=1, concurrency=1)
    with CachedServer() as server:
        record = measure(
            Target(server.url), config, LoadConfig(sessions=sessions, cache="keep"), session_header="x-talk"
        )
        named = [call.headers.get("x-talk") for call in server.calls if call.path == "/v1/chat/completions"]
    assert record.load.sessions == sessions
    expected = ["warmup-0", "measured-0", "measured-0", "measured-2", "measured-2"]
    assert named[-5:] == (expected if sessions else [None] * 5)


def test_turns_after_a_failed_one_count_as_failed() -> None:
    async def fail_at_second(call: Call, reply: Reply) -> None:
        if len(call.body["messages"]) == 3:
            await reply.json({"error": {"message": "no"}}, 500)
        else:
            await reply.stream(FRAMINGS["one event a read"](events("chat", THREE_OF_FIVE, "final")))

    with MockServer(fail_at_second, MODELS) as server:
        record = run(server, workload("chat", turns=4, num_requests=4, warmup_requests=0))
    assert [request.status for request in measured(record)] == ["ok", "failed", "failed", "failed"]
    assert measured(record)[3].error == "not sent: turn 2 of the conversation failed"
    assert record.counts.failed == 3
    assert record.summary["goodput_share"] == 0.25


def test_a_chat_beyond_the_context_is_refused_before_it_is_sent() -> None:
    # Two turns of 50 tokens each, and prompts of some hundred characters, which the mock takes for tokens.
    config = workload("chat", num_requests=4, turns=2, input_len=100, output_len=50)
    with CachedServer() as server:
        server.routes["/server_info"] = {"context_length": 200}
        with pytest.raises(ConfigError, match=r"asks for \d+ tokens of prompt and answer, the server takes 200"):
            run(server, config)
        assert len(server.sent("/v1/chat/completions")) == 2  # only what weighs the words
        server.routes["/server_info"] = {"context_length": 400}
        assert run(server, config).valid
