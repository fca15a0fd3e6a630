"""The life of an engine: requests, aborts, shutdown. Nobody ever waits in vain."""

import threading

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.engine.engine import Engine
from sglk.errors import RequestError
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import (
    ENDLESS,
    GREEDY,
    TOKENIZER,
    WAIT_S,
    Receiver,
    gated,
    gauges,
    running,
    submit,
)
from tests.waiting import wait_until


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
        running_one = submit(engine, "running", "hi", ENDLESS)
        gate.wait_for_step()
        queued = submit(engine, "queued", "hi", ENDLESS)
        closing = threading.Thread(target=engine.shutdown)
        closing.start()
        # Behind the second request.
        wait_until(lambda: engine._inbox._tasks.qsize() == 2)
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
