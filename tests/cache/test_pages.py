import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglk.cache.pages import CACHED, FREE, HELD, PagePool


def test_fresh_pool_hands_out_one_run() -> None:
    pool = PagePool(8, 16)

    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2) == [3, 4]
    assert (pool.free_pages, pool.states.count(HELD), pool.states.count(CACHED)) == (3, 5, 0)


def test_growth_continues_behind_the_last_page_where_it_can() -> None:
    pool = PagePool(8, 16)
    first = pool.allocate(2)
    pool.allocate(2)
    pool.free([first[1]])

    assert pool.allocate(1, after=first[0]) == [1]
    assert pool.allocate(1, after=1) == [4]


def test_run_is_preferred_to_earlier_scattered_pages() -> None:
    pool = PagePool(10, 1)
    pages = pool.allocate(10)
    pool.free([pages[0], pages[2], pages[5], pages[6], pages[7]])

    assert pool.allocate(3) == [5, 6, 7]
    assert pool.allocate(2) == [0, 2]


def test_whole_pool_can_be_taken_in_pieces() -> None:
    pool = PagePool(6, 4)
    pages = pool.allocate(6)
    pool.free(pages[::2])

    assert sorted(pool.allocate(3)) == pages[::2]
    assert pool.free_pages == 0


def test_page_changes_hands_only_from_its_owner() -> None:
    pool = PagePool(2, 4)
    (page,) = pool.allocate(1)
    pool.adopt([page])

    with pytest.raises(AssertionError, match="state"):
        pool.free([page])
    pool.evict([page])
    with pytest.raises(AssertionError, match="state"):
        pool.evict([page])


def test_taking_more_than_there_is_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="3 pages wanted, 2 free"):
        PagePool(2, 4).allocate(3)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for_rounds_up(tokens: int, pages: int) -> None:
    assert PagePool(4, 16).pages_for(tokens) == pages


@given(st.lists(st.tuples(st.sampled_from(["allocate", "adopt", "free", "evict"]), st.integers(0, 5)), max_size=60))
def test_counts_agree_with_states(actions: list[tuple[str, int]]) -> None:
    pool = PagePool(12, 4)
    owned: dict[int, list[int]] = {HELD: [], CACHED: []}
    for action, count in actions:
        if action == "allocate":
            pages = pool.allocate(min(count, pool.free_pages))
            assert not set(pages) & {*owned[HELD], *owned[CACHED]}
            owned[HELD] += pages
            continue
        source = CACHED if action == "evict" else HELD
        pages, owned[source] = owned[source][:count], owned[source][count:]
        getattr(pool, action)(pages)
        if action == "adopt":
            owned[CACHED] += pages
    counts = [pool.states.count(state) for state in (FREE, HELD, CACHED)]
    assert counts == [pool.free_pages, len(owned[HELD]), len(owned[CACHED])]


@given(st.lists(st.integers(0, 11), max_size=60))
def test_one_page_is_the_one_that_a_row_of_one_would_be(numbers: list[int]) -> None:
    by_one, by_row = PagePool(12, 4), PagePool(12, 4)
    for pool in (by_one, by_row):
        pool.allocate(1)
    for number in numbers:
        if by_one.states[number] == HELD:
            by_one.free([number])
            by_row.free([number])
        elif by_one.free_pages:
            assert [by_one.take(after=number)] == by_row.allocate(1, after=number)
    assert (by_one.free_pages, by_one.states) == (by_row.free_pages, by_row.states)
