"""Engines on a scripted runner, and receivers that wait for what they send."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch
from sglk.engine.engine import Engine
from sglk.engine.messages import EngineStats, Finish, GenerateRequest, Output, SamplingParams
from sglk.models.dummy_tokenizer import dummy_tokenizer
from sglk.testing.scripted import ScriptedRunner

TOKENIZER = dummy_tokenizer(320)
WAIT_S = 120.0

GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


class Receiver:
    """Takes the outputs of one request."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self._news = threading.Condition()

    def __call__(self, output: Output) -> None:
        with self._news:
            assert self.finish is None, "a message after the last one"
            self.outputs.append(output)
            self._news.notify_all()

    @property
    def finish(self) -> Finish | None:
        return self.outputs[-1].finish if self.outputs else None

    @property
    def token_ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    def wait(self) -> Finish:
        """Wait for the end."""
        self.wait_for(lambda: self.finish is not None)
        assert self.finish is not None
        return self.finish

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, WAIT_S), f"timed out with {self.outputs[-1:]}"


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
def running(runner: ScriptedRunner | None = None, **runtime: Any) -> Iterator[Engine]:
    engine = Engine(runner or ScriptedRunner(), TOKENIZER, RuntimeConfig(**runtime))
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


@contextmanager
def gated(**runtime: Any) -> Iterator[tuple[Engine, StepGate]]:
    gate = StepGate()
    with running(ScriptedRunner(before_step=gate), **runtime) as engine:
        try:
            yield engine, gate
        finally:
            gate.open()


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """Let what is submitted in the block begin together after it, however slowly it comes."""
    end = threading.Event()
    engine._inbox.post(lambda: end.wait(WAIT_S))
    try:
        yield
    finally:
        end.set()


def failing(when: Callable[[int, Batch], bool]) -> ScriptedRunner:
    def check(step: int, batch: Batch) -> None:
        if when(step, batch):
            raise RuntimeError("device on fire")

    return ScriptedRunner(before_step=check)


def submit(engine: Engine, name: str, prompt: str | list[int], sampling: SamplingParams = GREEDY) -> Receiver:
    receiver = Receiver()
    ids = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
    engine.submit(GenerateRequest(name, tuple(ids), sampling), receiver)
    return receiver


def scripted(text: str | bytes, **settings: Any) -> ScriptedRunner:
    """A runner that answers every prompt with the bytes of `text`, then end of sequence."""
    answer = list(text.encode() if isinstance(text, str) else text)
    return ScriptedRunner(script=lambda prompt: answer, **settings)


def gauges(stats: EngineStats) -> tuple[int, int, int]:
    """Requests that run, requests that wait, KV tokens of live requests."""
    return stats.running_requests, stats.queued_requests, stats.kv_used_tokens
