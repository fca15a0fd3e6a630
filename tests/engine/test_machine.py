"""Whatever arrives, leaves, fails or is flushed in whatever order: the books balance and no token changes."""

from functools import cache

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglk.engine.messages import SamplingParams
from tests.engine.scheduling import Rig, alone, answer

CONTEXT = 40


@cache
def expected(prompt: tuple[int, ...], sampling: SamplingParams) -> list[int]:
    return alone(prompt, sampling, context_length=CONTEXT)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        lead_tokens=st.sampled_from([2, 64]),
        pool_tokens=st.sampled_from([24, 48, 96]),
        page_size=st.sampled_from([1, 4, 8]),
        chunk=st.sampled_from([-1, 1, 5, 8]),
        cap=st.sampled_from([8, 64]),
        window=st.sampled_from([1, 3, 8]),
        policy=st.sampled_from(["fcfs", "lpm", "shortest_prompt_first"]),
        conservativeness=st.sampled_from([0.01, 1.0]),
        mixed=st.booleans(),
        min_len=st.sampled_from([0, 0, 12]),
        disabled=st.sampled_from([False, False, True]),
    )
    def set_up(
        self,
        lead_tokens: int,
        pool_tokens: int,
        page_size: int,
        chunk: int,
        cap: int,
        window: int,
        policy: str,
        conservativeness: float,
        mixed: bool,
        min_len: int,
        disabled: bool,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("sglk.engine.scheduler.LEAD_TOKENS", lead_tokens)
        self.rig = Rig(
            pool_tokens=pool_tokens,
            context_length=CONTEXT,
            page_size=page_size,
            chunked_prefill_size=chunk,
            max_prefill_tokens=cap,
            max_running_requests=window,
            schedule_policy=policy,
            schedule_conservativeness=conservativeness,
            enable_mixed_chunk=mixed,
            radix_min_len=min_len,
            disable_radix_cache=disabled,
        )
        self.count = 0
        self.asked: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=22).map(tuple) | st.just((5,) * 18),
        length=st.integers(1, 20),
        seed=st.sampled_from([None, 1]),
    )
    def add(self, prompt: tuple[int, ...], length: int, seed: int | None) -> None:
        sampling = SamplingParams(
            max_new_tokens=length, temperature=0.0 if seed is None else 1.0, seed=seed, ignore_eos=True
        )
        self.count += 1
        self.asked[str(self.count)] = (prompt, sampling)
        self.rig.add(str(self.count), prompt, sampling)

    @precondition(lambda self: self.rig.scheduler.has_work)
    @rule(steps=st.integers(1, 6))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.rig.scheduler.has_work:
                for name in self.rig.step():
                    self.compare(name)

    @precondition(lambda self: self.rig.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.rig.drop(data.draw(st.sampled_from(sorted(self.rig.live))))

    @precondition(lambda self: self.rig.scheduler.has_work)
    @rule()
    def fail(self) -> None:
        batch = self.rig.scheduler.schedule()
        assert batch is not None
        for row in batch.rows:
            self.rig.drop(row.request_id, keep_kv=False)

    @rule()
    def flush(self) -> None:
        self.rig.cache.flush()

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()

    def compare(self, name: str) -> None:
        prompt, sampling = self.asked[name]
        room = min(CONTEXT, self.rig.pool.num_tokens) - len(prompt)
        assert answer(self.rig.done[name]) == expected(prompt, sampling)[:room]

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.finish()
        finally:
            self.patch.undo()

    def finish(self) -> None:
        self.rig.finish()
        for name in self.rig.done:
            self.compare(name)
        self.rig.cache.flush()
        assert self.rig.pool.free_pages == self.rig.pool.num_pages


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
