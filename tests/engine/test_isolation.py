"""Of a step that fails, only those requests fail that fail by themselves, and nothing of theirs stays behind."""

import gc
import logging
import weakref

import pytest

from sglk.engine.batch import Batch, BatchRow, RowFailure
from sglk.engine.isolation import run_rows
from sglk.engine.patience import MAX_FAILED_STEPS
from sglk.errors import CapacityError
from sglk.testing.scripted import ScriptedRunner
from tests.engine.receiving import GREEDY, gauges, running, submit
from tests.engine.scheduling import Rig, alone, answer


class PanicException(BaseException):
    """What a panic in Rust becomes."""


def raising_for(*names: str, error: BaseException | None = None) -> ScriptedRunner:
    """A runner that raises whenever one of these requests is in the step."""

    def check(step: int, batch: Batch) -> None:
        if any(row.request_id in names for row in batch.rows):
            raise error or RuntimeError("device on fire")

    return ScriptedRunner(before_step=check)


def spoiling(*names: str, after: int = 0) -> ScriptedRunner:
    """A runner whose logits for these requests are not numbers, once they have `after` tokens."""

    def spoils(row: BatchRow) -> str | None:
        return "not finite" if row.request_id in names and row.num_generated >= after else None

    return ScriptedRunner(spoils=spoils)


def prompt(seed: int) -> list[int]:
    return [(seed * 37 + 11 * index) % 256 for index in range(40)]


def started(runner: ScriptedRunner, count: int) -> tuple[Rig, Batch]:
    rig = Rig(runner=runner)
    for index in range(count):
        rig.add(str(index), prompt(index))
    batch = rig.scheduler.schedule()
    assert batch is not None
    assert len(batch.rows) == count
    return rig, batch


@pytest.mark.parametrize("bad", ["0", "4", "15"])
def test_bad_row_is_found_by_halves(bad: str) -> None:
    runner = raising_for(bad)
    _, batch = started(runner, 16)
    results = run_rows(runner, batch)

    assert [index for index, result in enumerate(results) if isinstance(result, RowFailure)] == [int(bad)]
    assert results[int(bad)] == RowFailure("RuntimeError: device on fire", device=True)
    # The whole step, and two halves at each of four levels.
    assert len(runner.batches) == 1 + 2 * 4


def test_parts_keep_prefills_and_decodes_apart() -> None:
    rows = [BatchRow(str(index), [0], 0, [0], GREEDY, 0, 0, True) for index in range(5)]
    batch = Batch(rows, num_prefills=3)

    assert [batch.part(0, 2).num_prefills, batch.part(2, 5).num_prefills, batch.part(3, 5).num_prefills] == [2, 1, 0]
    assert [row.request_id for row in batch.part(2, 5).rows] == ["2", "3", "4"]


def test_row_that_does_not_sample_can_fail_too() -> None:
    rig = Rig(runner=raising_for("long"), chunked_prefill_size=16)
    rig.add("long", prompt(0))
    rig.add("short", prompt(1)[:8])
    rig.step()

    assert list(rig.live) == ["short"]
    assert rig.finish()["short"] == alone(prompt(1)[:8])


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("after", [0, 3])
def test_spoilt_request_fails_alone_and_its_kv_is_never_read(after: int, mixed: bool) -> None:
    rig = Rig(runner=spoiling("bad", after=after), page_size=4, enable_mixed_chunk=mixed)
    bad = rig.add("bad", prompt(0))
    rig.add("good", prompt(1))
    rig.finish()

    assert bad.finish is not None
    assert (bad.finish.reason, bad.finish.message) == ("error", "the step failed: not finite")
    assert len(answer(bad)) == after
    heir = rig.add("heir", [*prompt(0), *answer(bad), 1, 2, 3])
    rig.finish()
    # What was computed before the failure is good: the prompt, once it had its first token.
    assert heir.cached_tokens == (40 if after else 0)
    assert answer(heir) == alone(heir.prompt_ids)
    assert answer(rig.done["good"]) == alone(prompt(1))


@pytest.mark.parametrize(
    ("runner", "message"),
    [
        (spoiling("bad"), "the step failed: not finite"),
        (raising_for("bad"), "the step failed: RuntimeError: device on fire"),
        (raising_for("bad", error=SystemExit("no licence")), "the step failed: SystemExit: no licence"),
        (raising_for("bad", error=PanicException("overflow")), "the step failed: PanicException: overflow"),
        (
            raising_for("bad", error=CapacityError("no room for 1 GiB")),
            "the step failed: no room for 1 GiB; lower runtime.mem_fraction_static or runtime.max_prefill_tokens",
        ),
    ],
    ids=["spoilt", "raising", "exiting", "panicking", "out of memory"],
)
def test_neighbours_of_a_failing_request_get_their_answers(runner: ScriptedRunner, message: str) -> None:
    names = ["good 1", "good 2", "bad", "good 3"]
    with running(runner) as engine:
        receivers = {name: submit(engine, name, prompt(index)) for index, name in enumerate(names)}
        ends = {name: receiver.wait() for name, receiver in receivers.items()}

        assert (ends["bad"].reason, ends["bad"].message) == ("error", message)
        for index, name in enumerate(names):
            if name != "bad":
                assert receivers[name].token_ids == alone(prompt(index))
        stats = engine.stats()
        assert gauges(stats) == (0, 0, 0)
        assert (stats.requests_finished, stats.requests_failed) == (3, 1)


@pytest.mark.parametrize(
    "error",
    [
        CapacityError("no room"),
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_want_of_memory_ends_requests_and_never_the_engine(error: Exception) -> None:
    with running(raising_for("large", error=error)) as engine:
        for _ in range(2 * MAX_FAILED_STEPS):
            message = submit(engine, "large", "x").wait().message
            assert message is not None
            assert message.endswith("; lower runtime.mem_fraction_static or runtime.max_prefill_tokens")

        assert engine.is_alive
        assert submit(engine, "small", "x").wait().reason == "length"


def test_step_too_large_for_the_memory_is_computed_in_parts() -> None:
    def check(step: int, batch: Batch) -> None:
        if batch.num_tokens > 100:
            raise CapacityError("no room")

    with running(ScriptedRunner(before_step=check)) as engine:
        receivers = [submit(engine, str(index), prompt(index)) for index in range(6)]

        assert [receiver.wait().reason for receiver in receivers] == ["length"] * 6
    assert [receiver.token_ids for receiver in receivers] == [alone(prompt(index)) for index in range(6)]


def test_failed_step_is_forgotten_before_its_parts_are_run() -> None:
    """Its error holds frames, the frames hold tensors, and the parts need that memory."""

    class Tensor:
        pass

    held: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    def check(step: int, batch: Batch) -> None:
        alive.extend(ref() is not None for ref in held)
        if len(batch.rows) > 1:
            activation = Tensor()
            held.append(weakref.ref(activation))
            raise RuntimeError("too large")

    runner = ScriptedRunner(before_step=check)
    _, batch = started(runner, 2)
    gc.disable()
    try:
        logging.disable(logging.CRITICAL)
        run_rows(runner, batch)
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()

    assert alive == [False, False]


def test_every_row_of_a_dead_device_fails_and_then_the_engine() -> None:
    def dead(step: int, batch: Batch) -> None:
        raise RuntimeError("gone")

    with running(ScriptedRunner(before_step=dead)) as engine:
        for index in range(MAX_FAILED_STEPS):
            assert submit(engine, str(index), "x").wait().reason == "error"
        engine._thread.join(120)
        assert engine.failure is not None
        assert "5 steps failed in a row, the last with RuntimeError: gone" in engine.failure
