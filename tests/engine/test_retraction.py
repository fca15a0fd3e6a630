"""A pool that is too small for all: admission, retraction, and answers that fill it."""

import pytest

from sglk.engine.messages import SamplingParams
from tests.engine.scheduling import LONG, Rig, alone, answer, greedy, prompt


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_request_that_fills_the_pool_ends_with_length(page_size: int, count: int) -> None:
    rig = Rig(pool_tokens=64, page_size=page_size, schedule_conservativeness=0.01)
    for index in range(count):
        rig.add(str(index), prompt(8, index), LONG)

    answers = rig.finish()

    for index in range(count):
        assert answers[str(index)] == alone(prompt(8, index), LONG)[:56]
        finish = rig.done[str(index)].finish
        assert finish is not None
        assert finish.reason == "length"
    assert (rig.scheduler.retractions > 0) == (count > 1)
    rig.cache.flush()
    assert rig.pool.free_pages == rig.pool.num_pages


def test_retraction_takes_the_request_with_the_fewest_tokens_and_repeats_none() -> None:
    rig = Rig(pool_tokens=64, page_size=1, schedule_conservativeness=0.01)
    old, new = rig.add("old", prompt(8), LONG), None
    for _ in range(15):
        rig.step()
    new = rig.add("new", prompt(8, 1), LONG)
    seen: list[int] = []
    while "old" in rig.live:
        rig.step()
        assert answer(new)[: len(seen)] == seen
        seen = answer(new)

    assert rig.scheduler.retractions == 1
    assert old.admissions == 1
    assert rig.finish() == {"old": alone(prompt(8), LONG)[:56], "new": alone(prompt(8, 1), LONG)[:56]}
    assert new.admissions == 2


def test_a_prompt_that_is_being_computed_is_retracted_before_those_that_decode() -> None:
    rig = Rig(pool_tokens=64, page_size=1, chunked_prefill_size=4, schedule_conservativeness=0.01)
    for name in ("a", "b"):
        rig.add(name, prompt(8, ord(name)), LONG)
    while len(answer(rig.live["b"])) < 8:
        rig.step()
    long = rig.add("long", prompt(28, 2), LONG)
    while rig.scheduler.retractions == 0:
        rig.step()

    assert list(rig.scheduler._waiting) == ["long"]
    assert not answer(long)
    answers = rig.finish()
    assert answers == {name: alone(rig.done[name].prompt_ids, LONG)[: len(answers[name])] for name in answers}


def test_retracted_request_draws_on_as_if_nothing_had_happened() -> None:
    seeded = SamplingParams(max_new_tokens=200, temperature=1.0, seed=7, ignore_eos=True)
    rig = Rig(pool_tokens=64, page_size=1, schedule_conservativeness=0.01)
    for index in range(3):
        rig.add(str(index), prompt(8, index), seeded)

    assert rig.finish() == {str(index): alone(prompt(8, index), seeded)[:56] for index in range(3)}
    assert rig.scheduler.retractions > 0


def test_retracted_request_can_be_removed_from_the_queue() -> None:
    rig = Rig(pool_tokens=64, page_size=1, schedule_conservativeness=0.01)
    for index in range(2):
        rig.add(str(index), prompt(8, index), LONG)
    while rig.scheduler.retractions == 0:
        rig.step()
    (retracted,) = [name for name, request in rig.live.items() if not request.table.pages]
    rig.drop(retracted)
    rig.finish()

    assert len(rig.done) == 1


def test_conservative_admission_avoids_retraction() -> None:
    bold, careful = (Rig(pool_tokens=96, page_size=1, schedule_conservativeness=value) for value in (0.01, 1.5))
    for rig in (bold, careful):
        for index in range(6):
            rig.add(str(index), prompt(8, index), greedy(30))
        rig.finish()

    assert bold.scheduler.retractions > 0
    assert careful.scheduler.retractions == 0


def test_admission_counts_what_a_prompt_that_is_being_computed_will_add() -> None:
    """Beside the first one's answer, of which 0.7 * 130 tokens are expected, there is no room for 0.7 * 60 more."""
    rig = Rig(pool_tokens=200, page_size=1, chunked_prefill_size=16)
    rig.add("first", prompt(64), greedy(130))
    rig.step()
    rig.add("second", prompt(16, 1), greedy(60))
    rig.step()

    assert list(rig.scheduler._waiting) == ["second"]
    rig.add("third", prompt(16, 2), greedy(8))
    rig.drop("second")
    rig.step()
    assert not rig.scheduler._waiting


def test_the_longer_nothing_is_retracted_the_less_is_expected() -> None:
    rig = Rig(pool_tokens=4096, context_length=2048)
    rig.add("talker", prompt(4), greedy(700))
    rig.step()
    expected = []
    for steps in (0, 300, 300, 50):
        for _ in range(steps):
            rig.step()
        expected.append(rig.scheduler._ratio.value)

    assert expected == pytest.approx([0.7, 0.7 * 0.57, 0.7 * 0.14, 0.7 * 0.14])
    rig.finish()
    rig.add("later", prompt(4, 1))
    assert rig.scheduler._ratio.value == pytest.approx(0.7)
