"""Requests with a common beginning that come together."""

from typing import Any

import pytest

from tests.engine.scheduling import Rig, alone, answer, prompt


def test_twins_wait_for_the_first_of_them_and_read_its_prompt() -> None:
    rig = Rig(page_size=16, chunked_prefill_size=64)
    twins = [rig.add(f"twin {index}", [*prompt(150), index]) for index in range(5)]
    other = rig.add("other", prompt(60, 1))
    rig.step()

    assert [row.request_id for row in rig.batches[0].rows] == ["twin 0", "other"]
    answers = rig.finish()
    assert [twin.cached_tokens for twin in twins] == [0, 144, 144, 144, 144]
    assert answers == {request.request_id: alone(request.prompt_ids) for request in [*twins, other]}


@pytest.mark.parametrize(
    ("length", "settings"), [(16, {}), (150, {"disable_radix_cache": True}), (150, {"radix_min_len": 200})]
)
def test_twins_that_could_not_share_do_not_wait(length: int, settings: dict[str, Any]) -> None:
    rig = Rig(**settings)
    for index in range(3):
        rig.add(f"twin {index}", prompt(length))
    rig.step()

    assert len(rig.batches[0].rows) == 3


def test_twins_of_which_a_part_is_cached_wait_for_the_rest() -> None:
    rig = Rig(page_size=16, chunked_prefill_size=64)
    rig.add("before", prompt(40))
    rig.finish()
    twins = [rig.add(f"twin {index}", prompt(40) + prompt(100, 1)) for index in range(3)]
    rig.step()
    assert [row.request_id for row in rig.batches[-1].rows] == ["twin 0"]
    rig.finish()

    assert [twin.cached_tokens for twin in twins] == [32, 128, 128]
    assert {tuple(answer(twin)) for twin in twins} == {tuple(alone(twins[0].prompt_ids))}


@pytest.mark.parametrize(
    ("length", "page_size", "first"), [(60, 1, 2), (60, 16, 2), (40, 16, 2), (17, 16, 4), (65, 1, 1)]
)
def test_many_short_twins_wait_as_well(length: int, page_size: int, first: int) -> None:
    """Once the first step would compute 64 tokens of their common beginning again."""
    rig = Rig(page_size=page_size)
    twins = [rig.add(f"twin {index}", prompt(length)) for index in range(8)]
    answers = rig.finish()

    assert [batch.num_prefills for batch in rig.batches if batch.num_prefills] == [first, 8 - first]
    shared = (length - 1) // page_size * page_size
    assert [twin.cached_tokens for twin in twins] == [0] * first + [shared] * (8 - first)
    assert set(map(tuple, answers.values())) == {tuple(alone(prompt(length)))}


def test_twins_go_on_when_the_first_of_them_is_dropped() -> None:
    rig = Rig(chunked_prefill_size=64)
    for index in range(3):
        rig.add(f"twin {index}", prompt(150))
    rig.step()
    rig.drop("twin 0", keep_kv=False)

    assert rig.finish() == {"twin 1": alone(prompt(150)), "twin 2": alone(prompt(150))}
