"""What a run records, and how it asks the server."""

import pytest

from sglk.bench.record import Record
from sglk.bench.run import Progress, Subject, measure
from sglk.bench.target import Target
from sglk.bench.workload import workload_hash
from sglk.config.bench_schema import LoadConfig, SloConfig
from sglk.errors import ConfigError, RunError
from tests.bench.cached_server import CachedServer
from tests.bench.mock_server import Call, Reply
from tests.bench.running import measured, run, workload


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
