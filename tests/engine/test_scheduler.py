"""A scheduler: what it reads from the cache, what it leaves there, and when answers end."""

import pytest

from sglk.cache.pages import CACHED, HELD
from sglk.engine.messages import SamplingParams
from tests.engine.scheduling import GREEDY, LONG, Rig, alone, answer, greedy, prompt


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

    assert rig.pool.states.count(HELD) == 0
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
        rig.add(name, prompt(16), greedy(2))
        rig.finish()
    assert rig.pool.states.count(CACHED) == 0
    rig.add("long 1", prompt(48))
    rig.finish()
    rig.add("long 2", prompt(48))
    rig.finish()

    assert [rig.done[name].cached_tokens for name in ("short 2", "long 1", "long 2")] == [0, 0, 44]
