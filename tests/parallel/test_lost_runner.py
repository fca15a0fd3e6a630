"""An engine whose runner is lost dies at once, says why, and leaves nothing running."""

import threading

import pytest

from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch, RunnerLost
from sglk.engine.engine import Engine
from sglk.errors import RequestError
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import TOKENIZER, running, submit


def test_a_step_that_loses_the_runner_is_not_tried_again() -> None:
    def lose(step: int, batch: Batch) -> None:
        raise RunnerLost("rank 3 is gone")

    gate = threading.Event()
    runner = ScriptedRunner(before_step=lose, gate=gate)
    with running(runner) as engine:
        receivers = [submit(engine, str(index), "hi") for index in range(3)]
        gate.set()
        assert {receiver.wait().message for receiver in receivers} == {"the engine died: rank 3 is gone"}
        engine._thread.join(120)
        assert len(runner.batches) == 1
    assert runner.closed


def test_an_idle_engine_hears_of_the_loss() -> None:
    runner = ScriptedRunner()
    with running(runner) as engine:
        assert engine.is_alive
        runner.lose("rank 1 was killed")
        engine._thread.join(120)
        assert engine.failure == "the engine died: rank 1 was killed"
        with pytest.raises(RequestError, match="the engine died: rank 1 was killed"):
            submit(engine, "late", "hi")
        runner.lose("again")
    assert runner.closed


def test_an_engine_that_never_started_closes_its_runner_too() -> None:
    runner = ScriptedRunner()
    engine = Engine(runner, TOKENIZER, RuntimeConfig())
    assert not runner.closed
    engine.shutdown()
    assert runner.closed
