"""What a step has brought is told while the device computes the next one, and nothing is lost or told twice."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from sglk.engine.batch import Batch, RowResult
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import ENDLESS, GREEDY, TOKENIZER, WAIT_S, Receiver, running, scripted, submit


class Device(ScriptedRunner):
    """A device that works by itself: `launched` has begun its step, `gate` lets it end."""

    def __init__(self) -> None:
        super().__init__()
        self.asynchronous = True
        self.launched = threading.Semaphore(0)
        self.ends = threading.Semaphore(0)

    def launch(self, batch: Batch) -> Callable[[], list[RowResult | None]]:
        self.launched.release()

        def results() -> list[RowResult | None]:
            assert self.ends.acquire(timeout=WAIT_S)
            return self.run(batch)

        return results


def test_the_tokens_of_a_step_arrive_while_the_next_one_is_computed() -> None:
    device = Device()
    with running(device) as engine:
        receiver = submit(engine, "r", "hello", replace(GREEDY, max_new_tokens=4))
        for step in range(3):
            assert device.launched.acquire(timeout=WAIT_S)
            # The device holds step number `step`; what the steps before it brought is all there.
            receiver.wait_for(lambda step=step: len(receiver.token_ids) == step)
            device.ends.release()
        device.ends.release()
        assert receiver.wait().reason == "length"
        assert len(receiver.token_ids) == 4


def test_an_abort_comes_after_the_tokens_that_were_made_before_it() -> None:
    device = Device()
    with running(device) as engine:
        receiver = submit(engine, "r", "hello", ENDLESS)
        device.ends.release()
        for _ in range(2):
            assert device.launched.acquire(timeout=WAIT_S)
        engine.abort("r")
        device.ends.release()
        assert receiver.wait().reason == "abort"
        assert len(receiver.token_ids) == 2
        assert receiver.outputs[-1].completion_tokens == 2


@pytest.mark.parametrize("sampling", [GREEDY, replace(GREEDY, stop=("never in the answer",))])
def test_answers_are_the_same_whether_they_are_told_at_once_or_later(sampling: SamplingParams) -> None:
    with running() as engine:
        plain = [submit(engine, f"{index}", f"prompt {index}", sampling) for index in range(12)]
        answers = [(receiver.wait().reason, receiver.token_ids, receiver.text) for receiver in plain]
    device = Device()
    device.ends.release(1000)
    with running(device) as engine:
        late = [submit(engine, f"{index}", f"prompt {index}", sampling) for index in range(12)]
        assert [(receiver.wait().reason, receiver.token_ids, receiver.text) for receiver in late] == answers


def test_a_stop_string_ends_the_answer_before_another_step_is_begun() -> None:
    runner = scripted("one two three four")
    with running(runner) as engine:
        receiver = submit(engine, "r", "hello", SamplingParams(temperature=0.0, stop=("two",)))
        assert receiver.wait().reason == "stop"
        assert receiver.text == "one "
        assert engine.stats().steps == len("one two")


def test_a_receiver_that_fails_ends_its_own_request_alone() -> None:
    device = Device()
    device.ends.release(1000)

    class Failing(Receiver):
        def __call__(self, output: object) -> None:
            raise ValueError("no")

    with running(device) as engine:
        engine.submit(GenerateRequest("bad", tuple(TOKENIZER.encode("x")), ENDLESS), Failing())
        assert submit(engine, "good", "hello").wait().reason == "length"
        assert engine.is_alive
