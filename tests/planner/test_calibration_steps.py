"""Which steps a calibration takes, and what it makes of them."""

from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch
from sglk.errors import RunError
from sglk.planner.calibration.batches import Pool
from sglk.planner.calibration.design import Reach, families
from sglk.planner.calibration.entries import Way, prices_of
from sglk.planner.calibration.measure import Effort, measure_steps
from sglk.planner.calibration.steps import Measured, measure_model
from sglk.planner.cost.model import cost_model
from sglk.planner.cost.shape import StepShape
from sglk.testing.scripted import ScriptedRunner
from sglk.testing.tiny import write_tiny_model
from tests.planner.machines import TimedRunner

POOL = Pool(64, 16, 512)
PATIENT = Effort(repeats=3, longest_step_s=100.0, time_s=100.0)


@pytest.mark.parametrize(
    ("runtime", "context", "pool"),
    [
        (RuntimeConfig(chunked_prefill_size=512, max_running_requests=16), 2048, 32768),
        (RuntimeConfig(chunked_prefill_size=8192, max_running_requests=128), 8192, 100_000),
        (RuntimeConfig(chunked_prefill_size=-1, max_running_requests=3, page_size=128), 1000, 1024),
        (RuntimeConfig(chunked_prefill_size=16, max_running_requests=1), 64, 64),
    ],
)
def test_every_step_is_one_that_the_scheduler_could_make(runtime: RuntimeConfig, context: int, pool: int) -> None:
    reach = Reach.of(runtime, context, pool, 2048)
    found = families(reach)
    shapes = [shape for family in found for shape in family]
    assert len(shapes) == len(set(shapes))
    for shape in shapes:
        contexts = [length for _, length in shape.prefills] + list(shape.decodes)
        pages = sum(-(-length // runtime.page_size) for length in contexts)
        assert pages * runtime.page_size <= pool
        assert max(contexts) <= min(context, 2048)
        assert all(1 <= new <= min(reach.chunk, length) for new, length in shape.prefills)
        assert shape.logits <= shape.rows <= max(runtime.max_running_requests + 1, 1)
        assert sum(new for new, _ in shape.prefills) <= runtime.max_prefill_tokens
        batch = Pool.for_shapes(shapes, runtime.page_size, 512).batch(shape)
        assert StepShape.of(batch, runtime.page_size) == shape
    for family in found[:1]:
        assert [shape.tokens for shape in family] == sorted(shape.tokens for shape in family)


def test_steps_are_measured_in_turns_and_their_median_counts() -> None:
    slow = [0]

    def step_s(shape: StepShape) -> float:
        slow[0] += 1
        # Every seventh step meets a bad moment of the machine.
        return 0.10 * shape.rows * (50 if slow[0] % 7 == 0 else 1)

    runner = TimedRunner(step_s=step_s)
    shapes = [StepShape(decodes=(32,) * rows, logits=rows) for rows in (1, 2, 3, 4)]
    runner.allocate_kv(POOL.pages, POOL.page_size)
    seen: list[tuple[int, int]] = []
    effort = Effort(repeats=5, longest_step_s=100.0, time_s=100.0)
    points = measure_steps(runner, [shapes], POOL, effort, lambda: runner.now_s, lambda *done: seen.append(done))
    assert [point.shape for point in points] == shapes
    assert [point.seconds for point in points] == pytest.approx([0.10 * rows for rows in (1, 2, 3, 4)])
    assert all(point.repeats == 5 for point in points)
    assert seen[-1] == (24, 24)
    timed = runner.taken[-24:]
    rounds = [timed[start : start + 4] for start in range(4, 24, 4)]
    assert all(set(each) == set(shapes) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_short_steps_come_several_times_in_a_round() -> None:
    runner = TimedRunner(step_s=lambda shape: 0.02 * shape.tokens)
    runner.allocate_kv(POOL.pages, POOL.page_size)
    shapes = [StepShape(((size, size),), logits=1) for size in (1, 2, 8)]
    effort = Effort(repeats=2, longest_step_s=9.0, time_s=100.0)
    points = measure_steps(runner, [shapes], POOL, effort, lambda: runner.now_s)
    assert [point.repeats for point in points] == [10, 4, 2]


def test_larger_steps_of_a_kind_are_left_out_where_one_takes_too_long() -> None:
    runner = TimedRunner(step_s=lambda shape: 0.1 * shape.tokens)
    runner.allocate_kv(POOL.pages, POOL.page_size)
    chunks = [StepShape(((size, size),), logits=1) for size in (8, 16, 32, 64)]
    decodes = [StepShape(decodes=(32,), logits=1)]
    effort = Effort(repeats=2, longest_step_s=1.5, time_s=100.0)
    points = measure_steps(runner, [chunks, decodes], POOL, effort, lambda: runner.now_s)
    assert [point.shape for point in points] == [*chunks[:2], *decodes]


def test_a_step_that_fails_ends_the_measurement() -> None:
    runner = ScriptedRunner(spoils=lambda row: "the device is on fire")
    runner.allocate_kv(POOL.pages, POOL.page_size)
    with pytest.raises(RunError, match=r"a step of 2 rows failed: the device is on fire"):
        measure_steps(runner, [[StepShape(((4, 4), (4, 4)), logits=2)]], POOL, PATIENT)


def calibrated(folder: Path, *words: str) -> tuple[Measured, Way]:
    given = (f"model={folder}", "backend=sim", "runtime.max_total_tokens=4096", "calibrate.context_length=256", *words)
    config = compose("calibrate", given).config
    return measure_model(config, "sglk calibrate"), Way.of(config)


@pytest.mark.parametrize(
    ("architecture", "words"),
    [("LlamaForCausalLM", ("chip=kunlun",)), ("Qwen3MoeForCausalLM", ("chip=h100", "runtime.tp_size=2"))],
)
def test_a_simulated_chip_is_calibrated_to_its_own_prices(
    architecture: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path, architecture=architecture, hidden_size=256)
    measured, way = calibrated(folder, *words)
    assert measured.entry.kind == "simulated"
    assert measured.entry.providers["attention_decode"] == "sim"
    assert measured.entry.error.median < 0.01
    config = compose("plan", (f"model={folder}", "backend=sim", "profiles=none", *words)).config
    truth, prices = cost_model(config, "none"), prices_of(measured.entry, way)
    for shape in (StepShape(((100, 100),), logits=1), StepShape(decodes=(70, 130, 5), logits=3)):
        assert prices.step_s(shape) == pytest.approx(truth.step_s(shape), rel=0.02)


def test_a_calibration_of_a_simulated_chip_is_the_same_every_time(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (one, _), (other, _) = calibrated(folder, "chip=h100"), calibrated(folder, "chip=h100")
    assert one.entry.prices == other.entry.prices
    assert one.points == other.points


def test_the_shape_of_a_batch_tells_who_samples_and_how() -> None:
    shape = StepShape(prefills=((3, 10), (5, 5)), decodes=(7, 8), logits=3, drawn=2)
    batch: Batch = Pool(9, 4, 100).batch(shape)
    assert [row.samples for row in batch.rows] == [True, False, True, True]
    assert batch.rows[0].start == 7
    assert [list(row.pages) for row in batch.rows] == [[0, 1, 2], [3, 4], [5, 6], [7, 8]]
    assert StepShape.of(batch, page_size=4) == shape


def test_the_shape_of_a_batch_tells_what_rows_share() -> None:
    shape = StepShape(prefills=((4, 12),), decodes=(13, 10, 17), logits=4, shared=16)
    batch = Pool(99, 4, 100).batch(shape)
    assert [list(row.pages) for row in batch.rows[1:]] == [[3, 4, 5, 6], [3, 4, 9], [3, 4, 12, 13, 14]]
    assert StepShape.of(batch, page_size=4) == shape


def test_every_page_that_is_read_was_written_before() -> None:
    runner = TimedRunner()
    runner.allocate_kv(POOL.pages, POOL.page_size)
    written = {page for batch in POOL.filling(512) for row in batch.rows for page in row.pages}
    assert written == set(range(POOL.pages))
    large = StepShape(decodes=(1000,) * 3, logits=3)
    sized = Pool.for_shapes([StepShape(((7, 7),)), large], 16, 512)
    assert sized.pages == 3 * 63
    pages = [page for row in sized.batch(large).rows for page in row.pages]
    assert sorted(pages) == list(range(sized.pages))
