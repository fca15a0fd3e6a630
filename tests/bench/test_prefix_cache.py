"""What a run does about the prefix cache of the server, and what it finds out about it."""

import pytest

from tests.bench.cached_server import CachedServer
from tests.bench.running import run, workload


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
