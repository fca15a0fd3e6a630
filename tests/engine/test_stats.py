"""What an engine counts and times."""

from dataclasses import replace

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch
from sglk.engine.engine import Engine
from sglk.engine.messages import GenerateRequest, Output, SamplingParams
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import GREEDY, TOKENIZER, Receiver, StepGate, submit


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
