import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from sglk.bench.arrivals import arrival_times
from sglk.bench.record import Record, RequestRecord
from sglk.bench.run import Progress, Subject, measure
from sglk.bench.target import Target
from sglk.bench.workload import Medium, plan, workload_hash
from sglk.config.bench_schema import LoadConfig, SloConfig, WorkloadConfig
from sglk.errors import ConfigError, RunError
from tests.bench.cached_server import CachedServer
from tests.bench.mock_server import Call, MockServer, Reply
from tests.bench.streams import FRAMINGS, THREE_OF_FIVE, Usage, events

MODELS: dict[str, object] = {"/v1/models": {"data": [{"id": "mock"}]}}


def workload(kind: str = "random", **changes: Any) -> WorkloadConfig:
    defaults = WorkloadConfig(
        name=kind, kind=kind, num_requests=8, input_len=40, output_len=4, concurrency=2, warmup_requests=2
    )
    return dataclasses.replace(defaults, **changes)


def run(server: MockServer, config: WorkloadConfig | None = None, **load: Any) -> Record:
    return measure(Target(server.url), config or workload(), LoadConfig(**load), command="sglk bench")


def measured(record: Record) -> list[RequestRecord]:
    return [request for request in record.requests if request.phase == "measured"]


# The record


def test_a_good_run_tells_everything() -> None:
    with CachedServer() as server:
        record = run(server, slo=SloConfig(ttft_s=60.0))
    assert record.valid
    assert record.kind == "measured"
    assert (record.model, record.chip, record.runtime) == ("mock", None, None)
    assert (record.load.api, record.load.cache, record.load.url) == ("generate", "flush", server.url)
    assert record.load.slo == {"ttft_s": 60.0, "tpot_s": None, "e2e_s": None}
    assert record.workload["hash"] == workload_hash(workload())
    assert (record.counts.requests, record.counts.completed, record.counts.warmup) == (8, 8, 2)
    assert record.summary["output_tokens"] == 8 * 4
    assert record.summary["prompt_tokens"] == 8 * 40
    assert record.summary["goodput_share"] == 1.0
    assert record.summary["itl_s_n"] == 8 * 3
    assert [request.index for request in measured(record)] == list(range(8))
    assert record.warnings == []
    assert Record.from_json(record.to_json()) == record


def test_what_the_server_says_goes_before_what_the_caller_knows() -> None:
    info = {
        "chip": "kunlun",
        "engine": "native",
        "backend": "sim",
        "model": "m",
        "runtime": {"page_size": 128},
        "kv_capacity_tokens": 4096,
        "device": {"name": "P800"},
        "versions": {"torch": "2"},
    }
    with CachedServer() as server:
        server.routes["/server_info"] = info
        record = measure(Target(server.url), workload(), LoadConfig(), subject=Subject(chip="cpu", model="x"))
    assert (record.chip, record.model, record.engine, record.backend) == ("kunlun", "m", "native", "sim")
    assert record.kind == "simulated"
    assert record.runtime == {"page_size": 128}
    assert (record.server.kv_capacity_tokens, record.server.device) == (4096, "P800")


def test_a_server_of_any_backend_may_say_that_it_is_simulated() -> None:
    with CachedServer() as server:
        server.routes["/server_info"] = {"backend": "mychip", "simulated": True, "device": {"speed": "1"}}
        assert measure(Target(server.url), workload(), LoadConfig()).kind == "simulated"
        server.routes["/server_info"] = {"backend": "mychip", "simulated": False}
        assert measure(Target(server.url), workload(), LoadConfig()).kind == "measured"


def test_a_simulated_device_that_runs_at_another_speed_cannot_be_timed() -> None:
    with CachedServer() as server:
        server.routes["/server_info"] = {"backend": "sim", "simulated": True, "device": {"speed": "20"}}
        with pytest.raises(RunError, match=r"runs at speed 20, .* backend.options.speed=1"):
            measure(Target(server.url), workload(), LoadConfig())
        assert not server.sent("/generate")


def test_engine_counters_are_those_of_the_measured_part() -> None:
    with CachedServer() as server:

        async def metrics(call: Call, reply: Reply) -> None:
            done = len(server.sent("/generate"))
            lines = [
                "# TYPE sglk_retractions_total counter",
                f'sglk_retractions_total{{group="a"}} {done}',
                f'sglk_retractions_total{{group="b"}} {done}',
                "# TYPE sglk_running_requests gauge",
                "sglk_running_requests 3",
                "# TYPE other_total counter",
                "other_total 9",
                "",
            ]
            await reply.json("\n".join(lines).encode())

        server.handlers["/metrics"] = metrics
        record = run(server)
    assert record.engine_stats == {"retractions": 16.0}


def test_progress_names_the_phase_and_counts_to_the_end() -> None:
    seen: list[Progress] = []
    with CachedServer() as server:
        measure(Target(server.url), workload(), LoadConfig(), on_progress=seen.append)
    assert seen == [
        *(Progress("warmup", done, 2, 0) for done in range(3)),
        *(Progress("measured", done, 8, 0) for done in range(9)),
    ]


# What is sent


def test_an_open_loop_of_any_width_is_warmed_up_too() -> None:
    with CachedServer() as server:
        record = run(server, workload(arrival="poisson", rate=1000.0, concurrency=0, num_requests=2))
    assert (record.counts.warmup, record.counts.completed) == (2, 2)


def test_warmup_is_sent_first_left_out_and_unlike_the_measured() -> None:
    async def slow_at_first(call: Call, reply: Reply) -> None:
        if call.number < 3:
            await asyncio.sleep(0.8)
        await reply.stream(FRAMINGS["all in one read"](events("generate", THREE_OF_FIVE, "each")))

    with MockServer(slow_at_first, MODELS | {"/model_info": {"vocab_size": 1000}}) as server:
        record = run(server, workload(warmup_requests=3, concurrency=3))
    slowest = record.summary["e2e_s_p99"]
    assert slowest is not None
    assert slowest < 0.8 <= min(request.e2e_s or 0 for request in record.requests if request.phase == "warmup")
    assert (record.counts.warmup, record.counts.requests) == (3, 8)
    prompts = [tuple(body["input_ids"]) for body in server.sent("/generate")]
    assert len(prompts) == 11
    assert not set(prompts[:3]) & set(prompts[3:])


@pytest.mark.parametrize(("concurrency", "requests"), [(1, 4), (3, 9), (8, 4)])
def test_a_closed_loop_keeps_its_concurrency(concurrency: int, requests: int) -> None:
    now = peak = 0
    full = asyncio.Event()

    async def count(call: Call, reply: Reply) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        if now == min(concurrency, requests):
            full.set()
        await asyncio.wait_for(full.wait(), 10)
        now -= 1
        await reply.stream(FRAMINGS["all in one read"](events("completions", THREE_OF_FIVE, "final")))

    with MockServer(count, MODELS) as server:
        config = workload(concurrency=concurrency, num_requests=requests, warmup_requests=0)
        record = measure(Target(server.url), config, LoadConfig(api="completions"), subject=Subject(vocab_size=1000))
    assert record.counts.completed == requests
    assert peak == min(concurrency, requests)


def test_open_loop_latency_counts_from_the_intended_time() -> None:
    async def slow(call: Call, reply: Reply) -> None:
        await asyncio.sleep(0.05)
        await reply.stream(FRAMINGS["all in one read"](events("generate", THREE_OF_FIVE, "each")))

    with MockServer(slow, MODELS | {"/model_info": {"vocab_size": 1000}}) as server:
        record = run(server, workload(arrival="poisson", rate=1000.0, concurrency=1, num_requests=6))
    waits = [request.ttft_s or 0.0 for request in measured(record)]
    # One at a time: the sixth has waited for five others since it was due.
    assert max(waits) >= 6 * 0.05 - 0.02
    config = workload(arrival="poisson", rate=1000.0, num_requests=6)
    due = arrival_times(config, plan(config, Medium()).measured)
    assert [request.sent_s for request in measured(record)] == pytest.approx(due, abs=1e-5)


def test_poisson_arrivals_have_the_rate_asked_for_and_exponential_gaps() -> None:
    config = workload(arrival="poisson", rate=4.0, num_requests=4000, input_len=1)
    times = arrival_times(config, plan(config, Medium()).measured)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 4, rel=0.05)
    assert variance == pytest.approx(1 / 16, rel=0.15)


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


@pytest.mark.parametrize(
    ("native", "kind", "api"), [(True, "random", "generate"), (False, "random", "completions"), (True, "chat", "chat")]
)
def test_the_interface_follows_the_server_and_the_workload(native: bool, kind: str, api: str) -> None:
    with CachedServer(native=native) as server:
        assert run(server, workload(kind)).load.api == api


def test_words_are_weighed_on_servers_that_do_not_name_their_vocabulary() -> None:
    with CachedServer(native=False) as server:
        record = run(server)
    # The mock takes every character for a token.
    assert record.load.tokens_per_word is not None
    assert 4.0 < record.load.tokens_per_word < 8.0
    prompts = [body["prompt"] for body in server.sent("/v1/completions")]
    assert all(isinstance(prompt, str) for prompt in prompts)


def test_a_workload_beyond_the_context_is_refused_before_it_is_sent() -> None:
    with CachedServer() as server:
        server.routes["/server_info"] = {"context_length": 43}
        with pytest.raises(ConfigError, match="asks for 44 tokens of prompt and answer, the server takes 43"):
            run(server)
    assert server.sent("/generate") == []


# The cache


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


def test_two_runs_with_the_same_seed_agree_because_the_cache_is_flushed() -> None:
    with CachedServer() as server:
        first, second = run(server), run(server)
        prompts = server.sent("/generate")
    assert sorted(map(str, prompts[:10])) == sorted(map(str, prompts[10:]))
    for record in (first, second):
        assert record.summary["cached_share"] == 0.0
        assert (record.load.cache, record.load.salt, record.warnings) == ("flush", None, [])


@pytest.mark.parametrize("policy", ["salt", "flush"])
def test_salted_runs_do_not_warm_each_other(policy: str) -> None:
    # A server without /flush_cache: prompts are salted even if flushing was asked for, and the record says so.
    with CachedServer(flushes=None) as server:
        first, second = run(server, cache=policy), run(server, cache=policy)
    for record in (first, second):
        assert record.summary["cached_share"] is not None
        assert record.summary["cached_share"] < 0.01
        assert record.load.cache == "salt"
        assert record.warnings == (
            ["the server cannot flush its prefix cache; the prompts were salted instead"] if policy == "flush" else []
        )
    assert first.load.salt != second.load.salt


def test_a_recorded_salt_gives_the_same_prompts_again() -> None:
    with CachedServer() as server:
        record = run(server, cache="salt")
        again = run(server, cache="salt", salt=record.load.salt)
        prompts = server.sent("/generate")
    assert again.load.salt == record.load.salt
    assert sorted(map(str, prompts[:10])) == sorted(map(str, prompts[10:]))


def test_a_server_that_only_pretends_to_flush_is_found_out() -> None:
    with CachedServer(flushes=False) as server:
        first, second = run(server), run(server)
    assert first.warnings == []
    assert second.summary["cached_share"] == 1.0
    assert len(second.warnings) == 1
    assert second.warnings[0].startswith("100.0% of the prompt tokens came from the prefix cache unasked")


def test_a_cache_that_was_to_be_kept_is_recorded_without_complaint() -> None:
    with CachedServer() as server:
        run(server, cache="keep")
        record = run(server, cache="keep")
    assert (record.load.cache, record.summary["cached_share"], record.warnings) == ("keep", 1.0, [])
    assert "/flush_cache" not in server.paths()


@pytest.mark.parametrize("kind", ["shared_prefix", "chat"])
def test_hits_that_the_workload_asks_for_are_no_complaint(kind: str) -> None:
    config = workload(kind, num_requests=12, num_prefixes=2, prefix_len=400, input_len=300, turns=3, concurrency=1)
    with CachedServer() as server:
        record = run(server, config)
    assert record.summary["cached_share"] is not None
    assert record.summary["cached_share"] > 0.2
    assert record.warnings == []


def test_a_warmed_conversation_is_no_asked_hit() -> None:
    config = workload("chat", num_requests=12, prefix_len=200, input_len=400, turns=1, concurrency=1)
    with CachedServer(flushes=False) as server:
        run(server, config)
        record = run(server, config)
    assert len(record.warnings) == 1
    assert "came from the prefix cache unasked" in record.warnings[0]


# Failures


def failing(way: str) -> Callable[[Call, Reply], Any]:
    """Fail every second request in one way; there is no warm-up, so numbers are those of the measured requests."""

    async def answer(call: Call, reply: Reply) -> None:
        chunks = FRAMINGS["one event a read"](events("generate", THREE_OF_FIVE, "each"))
        if call.number % 2 == 0:
            await reply.stream(chunks)
        elif way == "refused":
            await reply.json({"error": {"message": "busy"}}, 503)
        elif way == "hangs":
            await reply.start()
            await asyncio.Event().wait()
        else:
            await reply.start()
            await reply.chunk(chunks[0])
            reply.drop()

    return answer


@pytest.mark.parametrize(("way", "status"), [("refused", "failed"), ("hangs", "timeout"), ("drops", "failed")])
def test_failed_requests_are_counted_and_never_flatter(way: str, status: str) -> None:
    with MockServer(failing(way), MODELS | {"/model_info": {"vocab_size": 1000}}) as server:
        record = run(
            server, workload(num_requests=4, concurrency=1, warmup_requests=0), timeout_s=1.0, slo=SloConfig(e2e_s=60.0)
        )
    assert [request.status for request in measured(record)] == ["ok", status] * 2
    # No second attempt is hidden.
    assert len(server.sent("/generate")) == 4
    assert not record.valid
    assert (record.counts.completed, record.counts.failed + record.counts.timeout) == (2, 2)
    assert record.summary["success_rate"] == 0.5
    assert record.summary["goodput_share"] == 0.5
    assert record.summary["e2e_s_n"] == 2
    assert record.summary["output_tokens"] == 2 * 15
    slowest = record.summary["e2e_s_p99"]
    assert slowest is not None
    assert slowest < 1.0
    assert record.warnings[-1].startswith("2 of 4 requests failed or timed out; first: ")


def test_failures_up_to_the_limit_leave_a_run_valid() -> None:
    with MockServer(failing("refused"), MODELS | {"/model_info": {"vocab_size": 1000}}) as server:
        assert run(server, workload(concurrency=1, warmup_requests=0), max_failure_rate=0.5).valid


def test_when_all_fail_there_are_no_figures_and_the_record_is_still_whole() -> None:
    async def refuse(call: Call, reply: Reply) -> None:
        await reply.json({"error": {"message": "no model"}}, 500)

    with MockServer(refuse, MODELS) as server:
        record = run(server, max_failure_rate=1.0)
    assert not record.valid
    assert record.summary["output_throughput"] is None
    assert json.loads(record.to_json())["summary"]["e2e_s_mean"] is None


def answering(pieces: Sequence[tuple[str, int]], usage: Usage, finish: str = "stop") -> MockServer:
    async def answer(call: Call, reply: Reply) -> None:
        await reply.stream(FRAMINGS["one event a read"](events("completions", pieces, usage, finish)))

    return MockServer(answer, MODELS)


def test_answers_without_a_second_token_have_no_tpot() -> None:
    with answering([("x", 1)], "final") as server:
        record = run(server, workload(num_requests=1, output_len=1))
    assert record.counts.short == 0
    assert record.valid
    assert record.summary["tpot_s_n"] == 0
    assert record.summary["tpot_s_mean"] is None
    assert record.summary["e2e_s_n"] == 1
    assert json.loads(record.to_json())["summary"]["tpot_s_p99"] is None


def test_answers_without_a_token_are_failures() -> None:
    with answering([("", 0)], "final") as server:
        record = run(server)
    assert not record.valid
    assert (record.counts.completed, record.counts.failed) == (0, 8)
    assert record.summary["goodput"] is None
    assert "first: the answer has no token" in record.warnings[-1]


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_answers_shorter_than_asked_are_counted_and_complained_about(finish: str) -> None:
    with answering(THREE_OF_FIVE, "final", finish) as server:
        record = run(server, workload(output_len=1000))
    assert (record.counts.completed, record.counts.short) == (8, 8)
    assert "8 of 8 answers are shorter than asked, the shortest with 15 of 1000 tokens" in record.warnings[-1]
    assert record.requests[-1].asked_tokens == 1000


@pytest.mark.parametrize(("finish", "short"), [("stop", 8), ("length", 0)])
def test_an_estimate_is_short_only_if_the_server_says_that_it_stopped(finish: str, short: int) -> None:
    with answering(THREE_OF_FIVE, "none", finish) as server:
        record = run(server, workload(output_len=1000))
    assert record.counts.short == short


def test_estimated_counts_are_marked_in_the_record() -> None:
    async def answer(call: Call, reply: Reply) -> None:
        await reply.stream(FRAMINGS["one event a read"](events("completions", THREE_OF_FIVE, "none")))

    with MockServer(answer, MODELS) as server:
        record = run(server, workload(output_len=100))
    assert all(request.estimated for request in measured(record))
    assert "the server reported no usage for 8 of 8 answers" in record.warnings[-1]


def test_no_server_is_one_plain_error() -> None:
    with CachedServer() as server:
        pass
    with pytest.raises(RunError, match=r"cannot reach http://127.*; is the server running\?"):
        run(server)


def test_a_server_that_dies_after_the_last_answer_leaves_the_results() -> None:
    with CachedServer() as server:
        target = Target(server.url)

        def gone() -> dict[str, Any]:
            raise RunError("cannot reach it")

        def on_progress(progress: Progress) -> None:
            if progress == Progress("measured", 8, 8, 0):
                target.metrics = gone  # type: ignore[method-assign]

        record = measure(target, workload(), LoadConfig(), on_progress=on_progress)
    assert record.valid
    assert record.warnings == ["after the run: cannot reach it"]
