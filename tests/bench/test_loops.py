"""When requests are sent: closed and open loops, the warm-up, arrivals."""

import asyncio
from itertools import pairwise

import pytest

from sglk.bench.arrivals import arrival_times
from sglk.bench.run import Subject, measure
from sglk.bench.target import Target
from sglk.bench.workload import Medium, plan
from sglk.config.bench_schema import LoadConfig
from tests.bench.cached_server import CachedServer
from tests.bench.mock_server import Call, MockServer, Reply
from tests.bench.running import MODELS, NATIVE, measured, run, workload
from tests.bench.streams import FRAMINGS, THREE_OF_FIVE, events


def test_an_open_loop_of_any_width_is_warmed_up_too() -> None:
    with CachedServer() as server:
        record = run(server, workload(arrival="poisson", rate=1000.0, concurrency=0, num_requests=2))
    assert (record.counts.warmup, record.counts.completed) == (2, 2)


def test_warmup_is_sent_first_left_out_and_unlike_the_measured() -> None:
    async def slow_at_first(call: Call, reply: Reply) -> None:
        if call.number < 3:
            await asyncio.sleep(0.8)
        await reply.stream(FRAMINGS["all in one read"](events("generate", THREE_OF_FIVE, "each")))

    with MockServer(slow_at_first, NATIVE) as server:
        record = run(server, workload(warmup_requests=3, concurrency=3))
    slowest = record.summary["e2e_s_p99"]
    assert slowest is not None
    assert slowest <= max(request.e2e_s or 0 for request in measured(record))
    assert min(request.e2e_s or 0 for request in record.requests if request.phase == "warmup") >= 0.8
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
        await asyncio.wait_for(full.wait(), 120)
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

    with MockServer(slow, NATIVE) as server:
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
