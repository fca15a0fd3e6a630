import logging
import random
from typing import Any

import pytest

from sglk.engine.messages import SamplingParams
from tests.engine.scheduling import GREEDY, Rig, alone, answer

LONG = SamplingParams(max_new_tokens=200, temperature=0.0, ignore_eos=True)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


@pytest.mark.parametrize(("count", "mixed"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize(
    ("chunk", "cap"), [(64, 32), (-1, 64), (128, 16384), (129, 256), (130, 256), (1, 256), (64, 64)]
)
def test_chunking_changes_no_token(chunk: int, cap: int, count: int, mixed: bool) -> None:
    rig = Rig(chunked_prefill_size=chunk, max_prefill_tokens=cap, enable_mixed_chunk=mixed)
    for index in range(count):
        rig.add(str(index), prompt(130, index))

    answers = rig.finish()

    assert answers == {str(index): alone(prompt(130, index)) for index in range(count)}
    limit = 130 if chunk == -1 else min(chunk, cap)
    assert max(len(row.input_ids) for batch in rig.batches for row in batch.rows) == min(limit, 130)
    longest = max(cap, 130 if chunk == -1 else 0) + (count if mixed else 0)
    assert all(batch.num_tokens <= longest for batch in rig.batches)


def test_chunk_beyond_the_cap_is_clamped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="sglk"):
        Rig(chunked_prefill_size=64, max_prefill_tokens=32)

    assert [record.getMessage() for record in caplog.records] == [
        "runtime.chunked_prefill_size=64 is above max_prefill_tokens=32; using 32"
    ]


@pytest.mark.parametrize("page_size", [1, 16])
def test_repeated_prompt_is_cached_but_for_its_last_token(page_size: int) -> None:
    rig = Rig(page_size=page_size)
    expected = alone(prompt(48))
    cached = []
    for name in ("first", "second", "third"):
        request = rig.add(name, prompt(48))
        assert rig.finish()[name] == expected
        cached.append(request.cached_tokens)

    assert cached == ([0, 47, 47] if page_size == 1 else [0, 32, 32])
    shorter = rig.add("shorter", prompt(48)[:33])
    assert rig.finish()["shorter"] == alone(prompt(48)[:33])
    assert shorter.cached_tokens == 32


def test_answers_are_cached_for_the_next_turn() -> None:
    rig = Rig(page_size=1)
    rig.add("turn 1", prompt(20))
    first = rig.finish()["turn 1"]
    history = prompt(20) + first + prompt(5, 1)
    second = rig.add("turn 2", history)

    assert rig.finish()["turn 2"] == alone(history)
    # The KV of the last token of an answer was never computed.
    assert second.cached_tokens == 20 + len(first) - 1


def test_requests_that_start_later_share_a_prompt_that_is_still_decoding() -> None:
    rig = Rig(page_size=4)
    rig.add("first", prompt(40))
    rig.step()
    second = rig.add("second", prompt(40))
    rig.finish()

    assert second.cached_tokens == 36
    assert answer(second) == alone(prompt(40))


@pytest.mark.parametrize("disable_radix_cache", [False, True])
@pytest.mark.parametrize("page_size", [1, 8])
def test_duplicates_and_evictions_in_a_small_pool_change_no_token(disable_radix_cache: bool, page_size: int) -> None:
    rig = Rig(pool_tokens=64, page_size=page_size, disable_radix_cache=disable_radix_cache)
    twin = prompt(40)
    prompts = {"twin 1": twin, "twin 2": twin}
    prompts |= {f"random {index}": prompt(5 + 4 * (index % 10), 100 + index) for index in range(30)}
    prompts |= {f"prefix {length}": twin[:length] + prompt(5, length) for length in range(1, 40)}
    for name, ids in prompts.items():
        rig.add(name, ids)

    answers = rig.finish()

    assert answers == {name: alone(ids) for name, ids in prompts.items()}
    rig.cache.flush()
    assert rig.pool.free_pages == rig.pool.num_pages


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
            rig.add(str(index), prompt(8, index), SamplingParams(max_new_tokens=30, temperature=0, ignore_eos=True))
        rig.finish()

    assert bold.scheduler.retractions > 0
    assert careful.scheduler.retractions == 0


def test_admission_counts_what_a_prompt_that_is_being_computed_will_add() -> None:
    """Beside the first one's answer, of which 0.7 * 130 tokens are expected, there is no room for 0.7 * 60 more."""
    rig = Rig(pool_tokens=200, page_size=1, chunked_prefill_size=16)
    rig.add("first", prompt(64), SamplingParams(max_new_tokens=130, temperature=0, ignore_eos=True))
    rig.step()
    rig.add("second", prompt(16, 1), SamplingParams(max_new_tokens=60, temperature=0, ignore_eos=True))
    rig.step()

    assert list(rig.scheduler._waiting) == ["second"]
    rig.add("third", prompt(16, 2), SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True))
    rig.drop("second")
    rig.step()
    assert not rig.scheduler._waiting


def test_the_longer_nothing_is_retracted_the_less_is_expected() -> None:
    rig = Rig(pool_tokens=4096, context_length=2048)
    rig.add("talker", prompt(4), SamplingParams(max_new_tokens=700, temperature=0, ignore_eos=True))
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


@pytest.mark.parametrize("mixed", [False, True])
def test_decoding_goes_on_between_the_chunks_of_a_long_prompt(mixed: bool) -> None:
    rig = Rig(chunked_prefill_size=8, enable_mixed_chunk=mixed)
    talker = rig.add("talker", prompt(4), SamplingParams(max_new_tokens=40, temperature=0, ignore_eos=True))
    rig.step()
    rig.batches.clear()
    rig.add("long", prompt(160))
    while not answer(rig.live["long"]):
        rig.step()

    # 20 chunks, and a decode step after each but the last, or a token beside each chunk.
    assert len(answer(talker)) == 1 + 20
    assert len(rig.batches) == (20 if mixed else 40)


@pytest.mark.parametrize(("mixed", "tokens"), [(False, 21), (True, 41)])
def test_decoding_goes_on_while_requests_keep_arriving(mixed: bool, tokens: int) -> None:
    rig = Rig(pool_tokens=32768, max_running_requests=100, enable_mixed_chunk=mixed)
    talker = rig.add("talker", prompt(4), SamplingParams(max_new_tokens=50, temperature=0, ignore_eos=True))
    for index in range(41):
        rig.add(str(index), prompt(4, index), LONG)
        rig.step()

    assert len(answer(talker)) == tokens


def test_mixed_step_takes_the_tokens_of_decodes_off_its_chunk_in_whole_pages() -> None:
    rig = Rig(chunked_prefill_size=48, page_size=16, enable_mixed_chunk=True)
    for index in range(3):
        rig.add(str(index), prompt(4, index), LONG)
    rig.step()
    rig.add("long", prompt(100, 9))
    sizes = []
    while "long" not in rig.scheduler.decoding:
        rig.step()
        sizes.append((len(rig.batches[-1].rows[0].input_ids), rig.batches[-1].num_tokens))

    assert sizes == [(32, 35), (32, 35), (32, 35), (4, 7)]


def test_mixed_step_takes_the_tokens_of_decodes_off_its_budget() -> None:
    rig = Rig(max_prefill_tokens=32, chunked_prefill_size=32, page_size=1, enable_mixed_chunk=True)
    for index in range(8):
        rig.add(str(index), prompt(4, index), LONG)
    rig.step()
    for index in range(3):
        rig.add(f"more {index}", prompt(10, 10 + index), LONG)
    rig.step()

    # 8 decodes leave 24 of 32 tokens, which two prompts of 10 fit.
    assert (rig.batches[-1].num_prefills, rig.batches[-1].num_tokens) == (2, 28)


def test_mixed_step_makes_progress_however_many_decode() -> None:
    rig = Rig(chunked_prefill_size=16, max_prefill_tokens=16, page_size=16, enable_mixed_chunk=True)
    names = [str(index) for index in range(20)]
    for name in names:
        rig.add(name, prompt(4, int(name)), LONG)
        rig.step()
    rig.add("long", prompt(32, 99))
    rig.step()

    assert rig.batches[-1].num_prefills == 1
    assert rig.batches[-1].num_tokens == 16 + 20


def test_short_prompts_join_the_step_of_a_long_one_and_two_long_ones_do_not_mix() -> None:
    rig = Rig(chunked_prefill_size=32, max_prefill_tokens=64)
    for name, length in {"long": 100, "short": 10, "longer": 120}.items():
        rig.add(name, prompt(length))
    rig.step()

    assert [row.request_id for row in rig.batches[-1].rows] == ["long", "short"]
    rig.finish()
    partial = [{row.request_id for row in batch.rows if not row.samples} for batch in rig.batches]
    assert all(len(names) <= 1 for names in partial)


def test_window_bounds_the_running_requests() -> None:
    rig = Rig(max_running_requests=3)
    for index in range(10):
        rig.add(str(index), prompt(10, index))
    while rig.scheduler.has_work:
        rig.step()
        assert rig.scheduler.num_running <= 3

    assert len(rig.done) == 10


def test_stop_tokens_end_an_answer_and_count() -> None:
    free = alone(prompt(10))
    rig = Rig()
    rig.scheduler._eos_token_ids = frozenset({free[3]})
    rig.add("stops", prompt(10), SamplingParams(max_new_tokens=8, temperature=0))
    rig.add("ignores", prompt(10), GREEDY)
    rig.add("own", prompt(10), SamplingParams(temperature=0, stop_token_ids=(free[1],), ignore_eos=True))
    answers = rig.finish()

    assert answers == {"stops": free[:4], "ignores": free, "own": free[:2]}
    finish = rig.done["stops"].finish
    assert finish is not None
    assert (finish.reason, finish.matched) == ("stop", free[3])


def test_seeded_sampling_does_not_depend_on_the_batch() -> None:
    seeded = SamplingParams(max_new_tokens=12, temperature=1.0, seed=7, ignore_eos=True)
    rig = Rig(pool_tokens=96, page_size=4)
    for index in range(8):
        rig.add(str(index), prompt(20, index), seeded)

    assert rig.finish() == {str(index): alone(prompt(20, index), seeded) for index in range(8)}


def test_requests_without_a_seed_differ_and_are_reproducible_as_a_whole() -> None:
    unseeded = SamplingParams(max_new_tokens=12, temperature=1.0, ignore_eos=True)
    runs = []
    for _ in range(2):
        rig = Rig(random_seed=3)
        rig.add("a", prompt(9), unseeded)
        rig.add("b", prompt(9), unseeded)
        runs.append(rig.finish())

    assert runs[0] == runs[1]
    assert runs[0]["a"] != runs[0]["b"]


def test_removed_request_gives_its_pages_back_in_every_state() -> None:
    rig = Rig(chunked_prefill_size=8, max_running_requests=2)
    rig.add("decoding", prompt(5), LONG)
    rig.step()
    rig.add("prefilling", prompt(50))
    rig.add("waiting", prompt(50, 1))
    rig.step()
    rig.step()
    for name in ("waiting", "prefilling", "decoding"):
        rig.drop(name)

    assert rig.pool.held_pages == 0
    assert not rig.scheduler.has_work
    assert rig.scheduler.remove("never was") is None


def test_kv_of_a_failed_step_is_not_kept() -> None:
    rig = Rig(page_size=4)
    rig.add("fails", prompt(40))
    assert rig.scheduler.schedule() is not None
    rig.drop("fails", keep_kv=False)

    assert rig.pool.free_pages == rig.pool.num_pages
    again = rig.add("again", prompt(40))
    assert rig.finish()["again"] == alone(prompt(40))
    assert again.cached_tokens == 0


def test_short_prefixes_stay_out_of_the_cache() -> None:
    rig = Rig(page_size=4, radix_min_len=32)
    for name in ("short 1", "short 2"):
        rig.add(name, prompt(16), SamplingParams(max_new_tokens=2, temperature=0, ignore_eos=True))
        rig.finish()
    assert rig.pool.cached_pages == 0
    rig.add("long 1", prompt(48))
    rig.finish()
    rig.add("long 2", prompt(48))
    rig.finish()

    assert [rig.done[name].cached_tokens for name in ("short 2", "long 1", "long 2")] == [0, 0, 44]


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
