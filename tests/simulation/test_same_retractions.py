"""A service that keeps putting requests back: what the processor's own engine does is what a simulation tells.

Time is the cost model's in both, since it decides who comes into which step; all else is real: clients, the engine's
thread, memory plan, kernels, tokens.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sglk.bench.prompts import Vocabulary
from sglk.bench.record import RequestRecord
from sglk.bench.workload import TEXTS, Medium, plan
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.config.simulate_schema import SimulateConfig
from sglk.engine.batch import Batch, RowResult
from sglk.engine.engine import Engine
from sglk.engine.loading import load_runner
from sglk.engine.messages import EngineStats, GenerateRequest, Output
from sglk.engine.runner import ModelRunner
from sglk.planner.cost.model import CostModel, cost_model
from sglk.planner.cost.shape import StepShape
from sglk.simulation.clients import Clients
from sglk.simulation.clock import VirtualClock
from sglk.simulation.deployment import Way
from sglk.simulation.run import simulate
from sglk.simulation.times import TokenTimes
from sglk.simulation.words import TEMPLATE_TOKENS
from sglk.testing.tiny import write_tiny_model

CHIP = ("chip=cpu", "chip.bandwidth_gb_s=20", "chip.peak_tflops={fp32: 0.2}", "profiles=none", "calibration=none")
MEMORY = ("runtime.device_memory_gib=0.01", "runtime.page_size=8", "runtime.schedule_conservativeness=0.001")
ARRIVING = ("workload.arrival=poisson", "workload.rate=60000", "workload.concurrency=0")

COUNTERS = {
    "prompt_tokens": "prompt_tokens",
    "cached_prompt_tokens": "cached_prompt_tokens",
    "generated_tokens": "generated_tokens",
    "engine_steps": "steps",
    "retractions": "retractions",
    "evicted_tokens": "evicted_tokens",
}
"""Names in a record -> those of the engine's figures."""

CASES = {
    "a closed loop": ("workload=random", "workload.input_len=12", "workload.output_len=120", "workload.concurrency=24"),
    "arrivals": ("workload=random", "workload.input_len=16", "workload.output_len=140", *ARRIVING),
    "prefixes": (
        "workload=shared_prefix",
        "workload.prefix_len=32",
        "workload.input_len=8",
        "workload.output_len=140",
        "runtime.schedule_policy=lpm",
        "runtime.chunked_prefill_size=32",
    ),
    "conversations": (
        "workload=chat",
        "workload.turns=3",
        "workload.prefix_len=24",
        "workload.input_len=8",
        "workload.output_len=60",
        "runtime.enable_mixed_chunk=true",
        *ARRIVING,
    ),
}


class ClockOfSteps(VirtualClock):
    """One that steps move on; `serve` is what its running is."""

    serve: Callable[[], None]

    def run(self) -> None:
        """Wait until everybody has an answer."""
        self.serve()

    def until(self, time_s: float) -> None:
        """Do what is due by then."""
        while self.next_s <= time_s:
            self.run_next()
        self.now = time_s

    def until_something_happens(self, happened: Callable[[], bool]) -> None:
        """Do what is due until somebody comes, or nothing is due any more."""
        while self.next_s < math.inf and not happened():
            self.until(self.next_s)


@dataclass
class Timed:
    """The processor's runner, whose steps take the time of the cost model."""

    runner: ModelRunner
    cost: CostModel
    page_size: int
    clock: ClockOfSteps

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def launch(self, batch: Batch) -> Callable[[], Sequence[RowResult | None]]:
        seconds = self.cost.step_s(StepShape.of(batch, self.page_size))
        finish = self.runner.launch(batch)

        def run() -> Sequence[RowResult | None]:
            results = finish()
            self.clock.until(self.clock.now + seconds)
            return results

        return run


@dataclass
class Served:
    """The real engine in the place of a simulated deployment, for the same clients."""

    engine: Engine
    clock: ClockOfSteps
    times: dict[str, TokenTimes] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    finished: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def router(self) -> "Served":
        """Return what the only engine needs in place of one."""
        return self

    def serve(self) -> None:
        """Let the engine's thread serve all that is due or will be."""
        self.clock.until_something_happens(lambda: bool(self.live))
        self.engine.start()
        assert self.done.wait(120)

    def submit(self, request: GenerateRequest, on_output: Callable[[Output], None]) -> None:
        self.times[request.request_id] = TokenTimes()

        def receive(output: Output) -> None:
            # It is told at the latest while the next step is computed, before that moves the clock on.
            for _ in output.token_ids:
                self.times[output.request_id].add(self.clock.now)
            if output.finish is not None:
                self.live.remove(output.request_id)
                self.finished.append(output.request_id)
            on_output(output)
            if not self.live:
                self.clock.until_something_happens(lambda: bool(self.live))
                if not self.live:
                    self.done.set()

        self.engine.submit(request, receive)
        self.live.add(request.request_id)

    def abort(self, request_id: str) -> None:
        raise AssertionError(request_id)


def real(config: SimulateConfig, way: Way) -> tuple[list[RequestRecord], EngineStats]:
    """Serve the workload by the engine on the processor."""
    runner, tokenizer = load_runner(config)
    assert isinstance(runner, ModelRunner)
    clock = ClockOfSteps()
    engine = Engine(Timed(runner, cost_model(config), config.runtime.page_size, clock), tokenizer, config.runtime)  # type: ignore[arg-type]
    served = Served(engine, clock)
    clock.serve = served.serve
    medium = Medium(Vocabulary(runner.vocab_size))
    if config.workload.kind in TEXTS:
        medium = Medium(None, overhead_tokens=TEMPLATE_TOKENS)
    conversations = plan(config.workload, medium).measured
    clients = Clients(served, way, config.workload, runner.vocab_size, config.bench)  # type: ignore[arg-type]
    records, stats = clients.run(conversations), engine.stats()
    engine.shutdown()
    return records, stats


@pytest.mark.parametrize("case", CASES)
def test_retractions_hits_and_times_are_those_of_the_engine(case: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    words = (*CHIP, *MEMORY, f"model={folder}", "workload.num_requests=96", "workload.range_ratio=0.3")
    composed = compose(
        "simulate", (*words, "runtime.mem_fraction_static=0.06", "simulate.arrival_s=1e-5", *CASES[case])
    )
    config = composed.config
    (replica,) = replica_configs(composed)

    told = simulate(config, [replica], calibration="none", what_if=config.simulate)
    records, stats = real(config, Way(arrival_s=1e-5))

    assert [each.status for each in records] == ["ok"] * 96
    assert told.requests == records
    assert {name: told.engine_stats[name] for name in COUNTERS} == {
        name: getattr(stats, own) for name, own in COUNTERS.items()
    }
    assert stats.retractions >= 4
    assert (stats.cached_prompt_tokens > 0) == (case in ("prefixes", "conversations"))
