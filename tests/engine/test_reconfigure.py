"""An engine that takes other parameters, or an empty cache, while it lives."""

import threading

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.errors import CapacityError, ConfigError, RequestError
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import (
    ENDLESS,
    WAIT_S,
    gated,
    running,
    submit,
)
from tests.waiting import wait_until


def test_flush_empties_the_cache_only_when_idle() -> None:
    with gated(page_size=4) as (engine, gate):
        receiver = submit(engine, "r", "x" * 40)
        gate.wait_for_step()
        results: list[bool] = []
        flusher = threading.Thread(target=lambda: results.append(engine.flush_cache()))
        flusher.start()
        wait_until(lambda: engine._inbox._tasks.qsize() == 1)
        gate.allow(1)
        flusher.join(WAIT_S)
        assert results == [False]
        gate.open()
        receiver.wait()

        assert engine.stats().kv_cached_tokens > 0
        assert engine.flush_cache()
        assert engine.stats().kv_cached_tokens == 0
        again = submit(engine, "again", "x" * 40)
        again.wait()
        assert again.outputs[-1].cached_tokens == 0


def test_reconfigure_replaces_the_pool_and_keeps_counting() -> None:
    with running(page_size=16, max_total_tokens=1024) as engine:
        first = submit(engine, "first", "x" * 40)
        first.wait()
        before = engine.stats()
        engine.reconfigure(RuntimeConfig(page_size=4, max_total_tokens=64, schedule_policy="lpm"))
        stats = engine.stats()

        assert engine.runtime.schedule_policy == "lpm"
        assert (stats.kv_capacity_tokens, stats.kv_cached_tokens) == (64, 0)
        assert stats.prompt_tokens == before.prompt_tokens == 40
        second = submit(engine, "second", "x" * 40)
        second.wait()
        assert second.token_ids == first.token_ids
        assert engine.stats().prompt_tokens == 80


def test_reconfigure_refuses_while_requests_live_unless_forced() -> None:
    with gated() as (engine, gate):
        receiver = submit(engine, "r", "hi", ENDLESS)
        gate.wait_for_step()
        caught: list[BaseException] = []

        def try_it() -> None:
            try:
                engine.reconfigure(RuntimeConfig(page_size=4))
            except RequestError as error:
                caught.append(error)

        thread = threading.Thread(target=try_it)
        thread.start()
        wait_until(lambda: engine._inbox._tasks.qsize() == 1)
        gate.allow(1)
        thread.join(WAIT_S)
        assert [error.status for error in caught if isinstance(error, RequestError)] == [409]
        gate.open()
        engine.reconfigure(RuntimeConfig(page_size=4), force=True)

        assert receiver.wait().reason in ("abort", "length")
        assert engine.runtime.page_size == 4
        assert submit(engine, "next", "hi").wait().reason == "length"


def test_forced_reconfigure_ends_requests_that_are_still_in_the_inbox() -> None:
    with gated() as (engine, gate):
        first = submit(engine, "first", "hi", ENDLESS)
        gate.wait_for_step()
        thread = threading.Thread(target=lambda: engine.reconfigure(RuntimeConfig(page_size=4), force=True))
        thread.start()
        wait_until(lambda: engine._inbox._tasks.qsize() == 1)
        second = submit(engine, "second", "hi", ENDLESS)
        gate.open()

        assert [first.wait().reason, second.wait().reason] == ["abort", "abort"]
        thread.join(WAIT_S)
        assert submit(engine, "next", "hi").wait().reason == "length"


def test_reconfigure_refuses_what_is_built_into_the_model() -> None:
    with running() as engine, pytest.raises(ConfigError, match=r"runtime\.dtype is 'auto' in the loaded model"):
        engine.reconfigure(RuntimeConfig(dtype="bf16"))


def test_engine_survives_a_pool_that_does_not_fit() -> None:
    class SmallDevice(ScriptedRunner):
        def allocate_kv(self, num_pages: int, page_size: int) -> None:
            if num_pages * page_size > 1000:
                raise CapacityError("too large")
            super().allocate_kv(num_pages, page_size)

    with running(SmallDevice(), max_total_tokens=512) as engine:
        with pytest.raises(CapacityError):
            engine.reconfigure(RuntimeConfig(max_total_tokens=2048))

        assert engine.runtime.max_total_tokens == 512
        assert submit(engine, "r", "hi").wait().reason == "length"
