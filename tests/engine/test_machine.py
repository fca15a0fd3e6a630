"""Whatever arrives, leaves, fails, is flushed or reconfigured, in any order: the books balance, no token changes."""

from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglk.cache.pages import HELD
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.testing.scripted import ScriptedRunner
from tests.engine.scheduling import Rig, alone, answer

CONTEXT = {1: 40, 4: 40, 16: 120, 128: 520}
"""Context length by page size: some pages long."""


@cache
def expected(prompt: tuple[int, ...], sampling: SamplingParams, context_length: int) -> list[int]:
    return alone(prompt, sampling, context_length=context_length)


@dataclass(frozen=True)
class Arrival:
    """One request; its prompt is made of blocks, each some tokens long."""

    blocks: list[int]
    cut: bool
    sampling: SamplingParams
    fault: str | None


ARRIVALS = st.builds(
    Arrival,
    blocks=st.lists(st.integers(0, 1), min_size=1, max_size=22) | st.just([5] * 14),
    cut=st.booleans(),
    sampling=st.builds(
        SamplingParams,
        max_new_tokens=st.integers(1, 20),
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.just(1),
        ignore_eos=st.just(True),
    ),
    fault=st.sampled_from([None, None, None, None, "raising", "spoilt"]),
)


class Faults:
    """Which requests the device fails, and how."""

    def __init__(self) -> None:
        self.raising: set[str] = set()
        self.spoilt: set[str] = set()

    def before_step(self, step: int, batch: Batch) -> None:
        if any(row.request_id in self.raising for row in batch.rows):
            raise RuntimeError("device on fire")

    def spoils(self, row: BatchRow) -> str | None:
        return "not finite" if row.request_id in self.spoilt else None


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("sglk.engine.policy.MAX_PASSES", 3)
        self.patch.setattr("sglk.engine.scheduler.MAX_PASSED_OVER", 2)
        self.rig: Rig | None = None
        self.count = 0
        self.asked: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}

    @initialize(data=st.data())
    def set_up(self, data: st.DataObject) -> None:
        self.configure(data)

    def configure(self, data: st.DataObject) -> None:
        """Start with empty pool and cache, under other parameters."""
        draw = lambda *values: data.draw(st.sampled_from(values))  # noqa: E731
        lead_tokens = draw(2, 64)
        self.patch.setattr("sglk.engine.scheduler.LEAD_TOKENS", lead_tokens)
        page_size = draw(1, 1, 4, 16, 128)
        context_length = CONTEXT[page_size]
        self.unit = max(1, page_size // 4)
        self.faults = Faults()
        self.rig = Rig(
            pool_tokens=max(int(context_length * draw(0.6, 1.2, 2.4)), page_size),
            runner=ScriptedRunner(
                context_length=context_length, before_step=self.faults.before_step, spoils=self.faults.spoils
            ),
            context_length=context_length,
            page_size=page_size,
            chunked_prefill_size=draw(-1, self.unit, 5 * self.unit, max(page_size, 8)),
            max_prefill_tokens=draw(8 * self.unit, 64 * self.unit),
            max_running_requests=draw(1, 3, 8),
            schedule_policy=draw("fcfs", "lpm", "shortest_prompt_first"),
            schedule_conservativeness=draw(0.01, 1.0),
            enable_mixed_chunk=draw(False, True),
            radix_min_len=draw(0, 0, 12 * self.unit),
            disable_radix_cache=draw(False, False, True),
        )

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=5))
    def add(self, arrivals: list[Arrival]) -> None:
        assert self.rig is not None
        for arrival in arrivals:
            prompt = tuple(block for block in arrival.blocks for _ in range(self.unit))[int(arrival.cut) :]
            prompt = prompt[: self.rig.scheduler.max_request_tokens - 1] or (0,)
            self.count += 1
            name = str(self.count)
            self.asked[name] = (prompt, arrival.sampling)
            self.rig.add(name, prompt, arrival.sampling)
            if arrival.fault is not None:
                getattr(self.faults, arrival.fault).add(name)

    @rule(steps=st.integers(1, 12))
    def run(self, steps: int) -> None:
        assert self.rig is not None
        for _ in range(steps):
            if self.rig.scheduler.has_work:
                for name in self.rig.step():
                    self.compare(name)

    @precondition(lambda self: self.rig.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        assert self.rig is not None
        self.rig.drop(data.draw(st.sampled_from(sorted(self.rig.live))))

    @precondition(lambda self: self.rig.scheduler.decoding)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        assert self.rig is not None
        decoding = self.rig.scheduler.decoding
        self.rig.scheduler._retract(decoding[data.draw(st.sampled_from(sorted(decoding)))])

    @rule(pages=st.integers(1, 8))
    def evict(self, pages: int) -> None:
        assert self.rig is not None
        self.rig.cache.evict(pages)

    @rule()
    def flush(self) -> None:
        assert self.rig is not None
        self.rig.cache.flush()

    @precondition(lambda self: len(self.rig.done) > 5)
    @rule(data=st.data())
    def reconfigure(self, data: st.DataObject) -> None:
        assert self.rig is not None
        for name in list(self.rig.live):
            self.rig.drop(name)
        self.settle()
        self.configure(data)

    @invariant()
    def balanced(self) -> None:
        if self.rig is not None:
            self.rig.check()

    def compare(self, name: str) -> None:
        assert self.rig is not None
        done = self.rig.done[name]
        assert done.finish is not None
        context_length = self.rig.runner.context_length
        prompt, sampling = self.asked[name]
        wanted = expected(prompt, sampling, context_length)[: self.rig.scheduler.max_request_tokens - len(prompt)]
        if name in self.faults.raising | self.faults.spoilt:
            assert done.finish.reason == "error"
            wanted = []
        assert answer(done) == wanted

    def teardown(self) -> None:
        try:
            if self.rig is not None:
                self.rig.finish()
                for name in self.rig.done:
                    self.compare(name)
                self.settle()
        finally:
            self.patch.undo()

    def settle(self) -> None:
        """Nothing is left but the cache, and the cache can be emptied."""
        assert self.rig is not None
        assert self.rig.pool.states.count(HELD) == 0
        self.rig.cache.flush()
        assert self.rig.pool.free_pages == self.rig.pool.num_pages


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
