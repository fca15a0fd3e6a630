"""The engine on a simulated device and the engine on the virtual clock make the same batches in the same order."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sglk.cache.radix import Key
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.config.plan_schema import PlanConfig
from sglk.engine.batch import Batch, RowResult
from sglk.engine.core import Core
from sglk.engine.engine import Engine
from sglk.engine.loading import load_runner
from sglk.engine.messages import GenerateRequest, Output, SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.engine.scheduler import Scheduler
from sglk.planner.cost.model import cost_model
from sglk.planner.cost.shape import StepShape
from sglk.simulation.clock import VirtualClock
from sglk.simulation.deployment import PlannedDevice
from sglk.simulation.engine import VirtualEngine
from sglk.simulation.times import TokenTimes
from sglk.testing.tiny import write_tiny_model

Decision = tuple[int, tuple[tuple[str, int, int, tuple[int, ...]], ...]]
"""How many rows prefill; then of each row its request, first position, number of tokens, and pages."""

Arrivals = Sequence[tuple[float, GenerateRequest]]


def decision(batch: Batch) -> Decision:
    rows = tuple((row.request_id, row.start, len(row.input_ids), tuple(row.pages)) for row in batch.rows)
    return batch.num_prefills, rows


def arrivals(count: int, vocab_size: int, mean_gap_s: float) -> list[tuple[float, GenerateRequest]]:
    """Some share a beginning; some come at the same moment; some after a long silence."""
    draw, at, found = random.Random(7), 0.0, []
    shared = tuple(draw.randrange(vocab_size) for _ in range(48))
    for number in range(count):
        own = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(1, 90)))
        prompt = shared + own if draw.random() < 0.4 else own
        sampling = SamplingParams(max_new_tokens=draw.randint(1, 40), temperature=0.0, ignore_eos=True, seed=number)
        found.append((at, GenerateRequest(str(number), prompt, sampling)))
        at += draw.choice((0.0, draw.expovariate(1 / mean_gap_s), 200 * mean_gap_s * (draw.random() < 0.05)))
    return found


@dataclass
class TimedRunner:
    """The runner of a simulated device that never waits; a step moves the time on by what the device was busy."""

    runner: ModelRunner
    now: float = 0.0
    decisions: list[Decision] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    on_time: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def launch(self, batch: Batch) -> Callable[[], Sequence[RowResult | None]]:
        def run() -> Sequence[RowResult | None]:
            clock = self.runner.backend.clock
            assert clock is not None
            self.decisions.append(decision(batch))
            before = clock.busy_s
            results = self.runner.run(batch)
            self.now += clock.busy_s - before
            self.ends_s.append(self.now)
            self.on_time()
            return results

        return run


def real(config: PlanConfig, requests: Arrivals) -> TimedRunner:
    """Serve `requests` by the real engine, its thread and all; they come as its time passes."""
    runner, tokenizer = load_runner(config)
    assert isinstance(runner, ModelRunner)
    timed = TimedRunner(runner)
    engine = Engine(timed, tokenizer, config.runtime)  # type: ignore[arg-type]
    waiting, live, done = list(requests), set[str](), threading.Event()

    def let_in() -> None:
        while waiting and waiting[0][0] <= timed.now:
            request = waiting.pop(0)[1]
            live.add(request.request_id)
            engine.submit(request, receive)

    def receive(output: Output) -> None:
        if output.finish is None:
            return
        live.remove(output.request_id)
        if not live and waiting:
            # Nothing happens until the next one comes.
            timed.now = max(timed.now, waiting[0][0])
            let_in()
        if not live:
            done.set()

    timed.on_time = let_in
    let_in()
    engine.start()
    assert done.wait(120)
    engine.shutdown()
    return timed


@dataclass
class Virtual:
    """What came of requests on the virtual clock."""

    engine: VirtualEngine
    decisions: list[Decision] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    answers: dict[str, tuple[tuple[int, ...], TokenTimes]] = field(default_factory=dict)
    """Tokens of each request, and when they came."""

    @property
    def cached(self) -> dict[Key, tuple[int, ...]]:
        """Pages of every node of the prefix cache."""
        return {node.key: tuple(node.pages) for node in self.engine.core.cache.nodes()}


def virtual(config: PlanConfig, requests: Arrivals, kv_tokens: int, step_by_step: bool = True) -> Virtual:
    """Serve them on the virtual clock; without `step_by_step` as a simulation does."""
    cost, clock = cost_model(config), VirtualClock()
    times: dict[str, TokenTimes] = {}

    def note(batch: Batch) -> None:
        found.decisions.append(decision(batch))
        found.ends_s.append(clock.now + cost.step_s(StepShape.of(batch, config.runtime.page_size)))

    def receive(output: Output) -> None:
        tokens, _ = found.answers.get(output.request_id, ((), TokenTimes()))
        found.answers[output.request_id] = ((*tokens, *output.token_ids), times[output.request_id])

    core = Core.build(PlannedDevice(320, 256, kv_tokens), config.runtime, frozenset())
    on_batch = note if step_by_step else None
    found = Virtual(VirtualEngine("group0/0", core, cost.step_s, clock, times, on_batch))
    for at, request in requests:
        clock.at(at, lambda request=request: found.engine.submit(request, receive))  # type: ignore[misc]
    clock.run()
    return found


CASES = {
    "fcfs": (),
    "lpm in chunks": (
        "runtime.schedule_policy=lpm",
        "runtime.chunked_prefill_size=32",
        "runtime.max_running_requests=4",
    ),
    "mixed": ("runtime.enable_mixed_chunk=true", "runtime.schedule_policy=shortest_prompt_first"),
    "retraction": ("runtime.max_total_tokens=512", "runtime.schedule_conservativeness=0.1"),
}


@pytest.mark.parametrize("case", CASES)
def test_batches_pages_and_times_are_those_of_the_engine(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_model(tmp_path)
    own = ("chip=h100", f"model={folder}", "backend=sim", "backend.options.speed=0", "profiles=none")
    composed = compose("plan", (*own, "runtime.page_size=8", "runtime.tp_size=1", *CASES[case]))
    (replica,) = replica_configs(composed)
    step_s = cost_model(replica.config).step_s(StepShape(decodes=(50,) * 4, logits=4))
    requests = arrivals(60, 320, 3 * step_s)

    engine = real(replica.config, requests)  # type: ignore[arg-type]
    assert engine.runner.pool is not None
    kv_tokens = engine.runner.pool.num_pages * engine.runner.pool.page_size
    simulated = virtual(replica.config, requests, kv_tokens)  # type: ignore[arg-type]

    assert simulated.decisions == engine.decisions
    assert simulated.ends_s == pytest.approx(engine.ends_s, rel=1e-9)
    # Steps that decide nothing are passed over, and nothing else becomes of anything.
    decode_ahead, passed_over = Scheduler.decode_ahead, list[int]()

    def counting(self: Scheduler, steps: int) -> None:
        passed_over.append(steps)
        decode_ahead(self, steps)

    monkeypatch.setattr(Scheduler, "decode_ahead", counting)
    quick = virtual(replica.config, requests, kv_tokens, step_by_step=False)  # type: ignore[arg-type]
    assert (quick.answers, quick.cached) == (simulated.answers, simulated.cached)
    assert quick.engine.stats() == simulated.engine.stats()
    assert (quick.engine.busy_s, quick.engine.peak_tokens) == (simulated.engine.busy_s, simulated.engine.peak_tokens)
    assert sum(passed_over) > 20
    # Each case does what it is there for.
    again = [name for prefills, rows in simulated.decisions for name, *_ in rows[:prefills]]
    assert (len(again) > len(set(again))) == (case in ("lpm in chunks", "retraction"))
