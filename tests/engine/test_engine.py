"""The life of an engine: aborts, failures, reconfiguration, shutdown. Nobody ever waits in vain."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch
from sglk.engine.engine import Engine
from sglk.engine.messages import GenerateRequest, Output, SamplingParams
from sglk.engine.patience import MAX_FAILED_STEPS
from sglk.errors import CapacityError, ConfigError, RequestError
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import ENDLESS, GREEDY, TOKENIZER, WAIT_S, Receiver, gauges, running, submit


class StepGate:
    """Lets a runner make as many steps as were allowed."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self.reached = threading.Semaphore(0)
        self._open = False

    def __call__(self, step: int, batch: Batch) -> None:
        self.reached.release()
        if not self._open:
            assert self._permits.acquire(timeout=WAIT_S)

    def allow(self, steps: int = 1) -> None:
        self._permits.release(steps)

    def wait_for_step(self) -> None:
        assert self.reached.acquire(timeout=WAIT_S)

    def open(self) -> None:
        self._open = True
        self._permits.release()


@contextmanager
def gated(**runtime: object) -> Iterator[tuple[Engine, StepGate]]:
    gate = StepGate()
    with running(ScriptedRunner(before_step=gate), **runtime) as engine:
        try:
            yield engine, gate
        finally:
            gate.open()


def failing(when: Callable[[int, Batch], bool], error: Exception | None = None) -> ScriptedRunner:
    def check(step: int, batch: Batch) -> None:
        if when(step, batch):
            raise error or RuntimeError("device on fire")

    return ScriptedRunner(before_step=check)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0)  # Lets the other threads run.


def test_many_requests_from_many_threads_all_get_their_own_answer() -> None:
    prompts = {str(index): f"prompt {index % 7} of {index}" for index in range(40)}
    with running(page_size=4, max_total_tokens=512) as engine:
        receivers: dict[str, Receiver] = {}
        threads = [
            threading.Thread(target=lambda name=name, text=text: receivers.update({name: submit(engine, name, text)}))
            for name, text in prompts.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        answers = {name: (receiver.wait().reason, receiver.token_ids) for name, receiver in receivers.items()}
        together = engine.stats()

        assert gauges(together) == (0, 0, 0)
        assert together.requests_finished == 40
        assert together.generated_tokens == 40 * 8
        assert together.prompt_tokens == sum(map(len, prompts.values()))
        for name, text in prompts.items():
            alone = submit(engine, name, text)
            assert (alone.wait().reason, alone.token_ids) == answers[name]


def test_refused_requests_raise_before_they_are_queued_and_the_next_one_works() -> None:
    with running() as engine:
        for prompt in ([], [320], [-1], [1] * 256):
            with pytest.raises(RequestError):
                submit(engine, "bad", prompt)

        assert submit(engine, "good", "hi").wait().reason == "length"
        assert engine.stats().requests_failed == 0


def test_request_id_in_use_is_refused_and_free_again_afterwards() -> None:
    with gated() as (engine, gate):
        first = submit(engine, "same", "hi")
        with pytest.raises(RequestError, match="'same' is in use"):
            submit(engine, "same", "ho")
        gate.open()
        first.wait()

        assert submit(engine, "same", "ho").wait().reason == "length"


def test_abort_of_a_running_request_frees_its_pages_before_the_next_step() -> None:
    with gated() as (engine, gate):
        doomed, other = submit(engine, "doomed", "hi", ENDLESS), submit(engine, "other", "ho", ENDLESS)
        gate.wait_for_step()
        gate.allow(3)
        doomed.wait_for(lambda: len(doomed.outputs) >= 2)
        engine.abort("doomed")
        gate.allow(1)

        assert doomed.wait().reason == "abort"
        assert engine.stats().running_requests == 1
        gate.open()
        assert other.wait().reason == "length"
        assert gauges(engine.stats()) == (0, 0, 0)
        assert engine.stats().requests_aborted == 1


def test_abort_of_a_queued_request() -> None:
    with gated(max_running_requests=1) as (engine, gate):
        first = submit(engine, "first", "hi")
        gate.wait_for_step()
        queued = submit(engine, "queued", "ho")
        assert engine.stats().queued_requests == 1
        engine.abort("queued")
        gate.allow(1)

        assert queued.wait().reason == "abort"
        assert queued.token_ids == []
        gate.open()
        assert first.wait().reason == "length"


def test_abort_of_an_unknown_or_finished_request_does_nothing() -> None:
    with running() as engine:
        engine.abort("never was")
        submit(engine, "done", "hi").wait()
        engine.abort("done")

        assert submit(engine, "next", "hi").wait().reason == "length"
        assert engine.stats().requests_aborted == 0


def test_flush_empties_the_cache_only_when_idle() -> None:
    with gated(page_size=4) as (engine, gate):
        receiver = submit(engine, "r", "x" * 40)
        gate.wait_for_step()
        results: list[bool] = []
        flusher = threading.Thread(target=lambda: results.append(engine.flush_cache()))
        flusher.start()
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


def test_shutdown_drains_and_then_refuses() -> None:
    with gated() as (engine, gate):
        receiver = submit(engine, "r", "hi")
        gate.wait_for_step()
        closing = threading.Thread(target=engine.shutdown, kwargs={"drain_timeout_s": WAIT_S})
        closing.start()
        gate.open()
        closing.join(WAIT_S)

        assert receiver.wait().reason == "length"
        assert not engine.is_alive
        assert engine.failure is None
        with pytest.raises(RequestError) as caught:
            submit(engine, "late", "hi")
        assert caught.value.status == 503


def test_shutdown_aborts_what_does_not_finish_in_time() -> None:
    with gated(max_running_requests=1) as (engine, gate):
        running_one, queued = submit(engine, "running", "hi", ENDLESS), submit(engine, "queued", "hi", ENDLESS)
        gate.wait_for_step()
        closing = threading.Thread(target=engine.shutdown)
        closing.start()
        gate.allow(1)

        assert running_one.wait().reason == "abort"
        assert queued.wait().reason == "abort"
        closing.join(WAIT_S)
        assert not closing.is_alive()


def test_shutdown_before_start_and_twice() -> None:
    engine = Engine(ScriptedRunner(), TOKENIZER, RuntimeConfig())
    receiver = submit(engine, "r", "hi", GREEDY)
    engine.shutdown()
    engine.shutdown()

    assert receiver.wait().reason == "abort"
    assert not engine.is_alive


def test_time_in_the_queue_ends_with_the_first_step() -> None:
    now = [100.0]
    gate = StepGate()
    engine = Engine(
        ScriptedRunner(before_step=gate),
        TOKENIZER,
        RuntimeConfig(max_running_requests=1, chunked_prefill_size=8),
        clock=lambda: now[0],
    )
    engine.start()
    first = submit(engine, "first", "x" * 20, SamplingParams(max_new_tokens=1, temperature=0))
    gate.wait_for_step()
    second = submit(engine, "second", "y" * 20, SamplingParams(max_new_tokens=1, temperature=0))
    now[0] += 2
    gate.open()
    first.wait()
    second.wait()
    engine.shutdown()

    assert [output.queue_s for output in first.outputs] == [0.0]
    assert [output.queue_s for output in second.outputs] == [2.0]


def test_throughput_covers_the_last_seconds_only() -> None:
    now = [100.0]
    engine = Engine(ScriptedRunner(), TOKENIZER, RuntimeConfig(), clock=lambda: now[0])
    engine.start()
    submit(engine, "r", "hi").wait()

    assert engine.stats().generation_throughput == pytest.approx(8 / 5)
    now[0] += 6
    assert engine.stats().generation_throughput == 0
    engine.shutdown()


@pytest.mark.parametrize(("asynchronous", "step_s"), [(False, 0.5), (True, 10.5)])
def test_time_in_steps_is_counted_with_what_is_told_meanwhile_where_the_device_works(
    asynchronous: bool, step_s: float
) -> None:
    now = [100.0]

    def compute(number: int, batch: Batch) -> None:
        now[0] += 0.5

    class Slow(Receiver):
        def __call__(self, output: Output) -> None:
            now[0] += 10
            super().__call__(output)

    runner = ScriptedRunner(before_step=compute)
    runner.asynchronous = asynchronous
    engine = Engine(runner, TOKENIZER, RuntimeConfig(), clock=lambda: now[0])
    engine.start()
    for name in ("a", "b"):
        receiver = Slow()
        engine.submit(GenerateRequest(name, (1, 2, 3), GREEDY), receiver)
        receiver.wait()
    engine.reconfigure(replace(engine.runtime, max_running_requests=3))
    engine.shutdown()

    stats = engine.stats()
    assert stats.steps == 16
    # Nothing is told in the first step of an answer, and the last of its tokens comes after all steps.
    assert stats.busy_s == pytest.approx(2 * (0.5 + 7 * step_s))
