"""Requests that fail, and answers that are not what was asked for."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sglk.bench.record import Record
from sglk.bench.run import Progress, measure
from sglk.bench.target import Target
from sglk.config.bench_schema import LoadConfig, SloConfig
from sglk.errors import RunError
from tests.bench.cached_server import CachedServer
from tests.bench.mock_server import Call, MockServer, Reply
from tests.bench.running import MODELS, NATIVE, measured, run, workload
from tests.bench.streams import FRAMINGS, THREE_OF_FIVE, Usage, events


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
    with MockServer(failing(way), NATIVE) as server:
        record = run(
            server, workload(num_requests=4, concurrency=1, warmup_requests=0), timeout_s=4.0, slo=SloConfig(e2e_s=60.0)
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
    assert slowest < 4.0
    assert record.warnings[-1].startswith("2 of 4 requests failed or timed out; first: ")


def test_failures_up_to_the_limit_leave_a_run_valid() -> None:
    with MockServer(failing("refused"), NATIVE) as server:
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
    with answering(THREE_OF_FIVE, "none") as server:
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


class Mortal(Target):
    """A server whose process has ended by the time that somebody looks."""

    def check(self) -> None:
        raise RunError("the server ended with code 1")


@pytest.mark.parametrize(("answered", "missing"), [(8, ""), (4, ": what takes longest is missing from its figures")])
def test_a_run_that_loses_its_server_leaves_what_was_answered(answered: int, missing: str) -> None:
    kept: list[Record] = []
    with (
        CachedServer() if answered == 8 else MockServer(failing("refused"), NATIVE) as server,
        pytest.raises(RunError, match="ended with code 1"),
    ):
        measure(Mortal(server.url), workload(warmup_requests=0), LoadConfig(), on_break=kept.append)
    (record,) = kept
    why = f"the server ended with code 1, with {answered} of 8 requests answered"
    assert record.broken_off == why
    assert f"the run was broken off ({why}){missing}" in record.warnings
    assert not record.valid
    assert record.counts.completed == answered
    assert Record.from_json(record.to_json()) == record
