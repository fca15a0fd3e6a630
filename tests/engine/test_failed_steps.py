"""Steps and receivers that fail: who ends with them, and when the whole engine does."""

import threading

import pytest

from sglk.engine.batch import Batch
from sglk.engine.messages import GenerateRequest, Output
from sglk.engine.patience import MAX_FAILED_STEPS
from sglk.errors import RequestError
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import (
    ENDLESS,
    WAIT_S,
    failing,
    gauges,
    running,
    submit,
)


def test_failed_step_ends_its_requests_alone() -> None:
    def is_bad(step: int, batch: Batch) -> bool:
        return any(row.request_id == "bad" for row in batch.rows)

    with running(failing(is_bad), page_size=4, max_running_requests=1) as engine:
        bad, good = submit(engine, "bad", "x" * 40), submit(engine, "good", "x" * 40)
        finish = bad.wait()

        assert finish.reason == "error"
        assert finish.message == "the step failed: RuntimeError: device on fire"
        assert good.wait().reason == "length"
        assert good.outputs[-1].cached_tokens == 0
        assert engine.is_alive
        assert gauges(engine.stats()) == (0, 0, 0)
        assert engine.stats().requests_failed == 1


def test_kv_of_a_failed_request_is_not_kept_beyond_its_prompt() -> None:
    with running(failing(lambda step, batch: step == 20), page_size=4) as engine:
        failed = submit(engine, "failed", "x" * 40, ENDLESS)
        assert failed.wait().reason == "error"
        later = submit(engine, "later", list(b"x" * 40) + failed.token_ids)
        later.wait()

    assert len(failed.token_ids) == 19
    assert later.outputs[-1].cached_tokens == 40


def test_engine_that_only_fails_dies_and_says_so() -> None:
    with running(failing(lambda step, batch: True)) as engine:
        for index in range(MAX_FAILED_STEPS):
            assert submit(engine, str(index), "hi").wait().reason == "error"
        engine._thread.join(WAIT_S)

        assert not engine.is_alive
        assert engine.failure is not None
        assert "device on fire" in engine.failure
        with pytest.raises(RequestError, match="the engine died") as caught:
            submit(engine, "late", "hi")
        assert caught.value.status == 503
        with pytest.raises(RequestError, match="the engine died"):
            engine.flush_cache()
        engine.abort("late")


@pytest.mark.parametrize("page_size", [1, 16])
def test_requests_that_fail_by_themselves_do_not_bring_the_engine_down(page_size: int) -> None:
    def poisoned(step: int, batch: Batch) -> bool:
        return any(row.request_id.startswith("bad") for row in batch.rows)

    with running(failing(poisoned), page_size=page_size) as engine:
        free = engine.stats().kv_used_tokens
        for index in range(3 * MAX_FAILED_STEPS):
            assert submit(engine, f"bad{index}", "hi").wait().reason == "error"

        assert submit(engine, "good", "hi").wait().reason == "length"
        assert engine.stats().kv_used_tokens == free


def test_failures_with_progress_between_them_do_not_add_up() -> None:
    with running(failing(lambda step, batch: step % 2 == 1)) as engine:
        for index in range(3 * MAX_FAILED_STEPS):
            submit(engine, str(index), "hi").wait()

        assert engine.is_alive


def test_broken_runner_takes_everybody_down_at_once_and_nobody_hangs() -> None:
    class Mute(ScriptedRunner):
        def run(self, batch: Batch) -> list[int]:
            return super().run(batch)[1:]

    gate = threading.Event()
    with running(Mute(gate=gate), max_running_requests=1) as engine:
        receivers = [submit(engine, str(index), "hi") for index in range(3)]
        gate.set()

        assert [receiver.wait().reason for receiver in receivers] == ["error"] * 3
        engine._thread.join(WAIT_S)
        assert not engine.is_alive


def test_receiver_that_fails_harms_only_its_own_request() -> None:
    def broken(output: Output) -> None:
        raise ConnectionError("gone")

    with running() as engine:
        engine.submit(GenerateRequest("broken", (1, 2, 3), ENDLESS), broken)
        good = submit(engine, "good", "hi", ENDLESS)

        assert good.wait().reason == "length"
        assert gauges(engine.stats()) == (0, 0, 0)
        assert engine.stats().requests_aborted == 1
