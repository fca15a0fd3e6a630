import random

from hypothesis import given
from hypothesis import strategies as st

from sglk.cache.pages import CACHED, HELD, PagePool
from sglk.cache.radix import WIDTH, Key, RadixCache
from tests.cache.keys import key_of

PAGE = 4
PAGE_BYTES = PAGE * WIDTH


def tokens(*pages: int, extra: int = 0) -> Key:
    """Four tokens per number, which names the page's content, and `extra` tokens that fill no page."""
    return key_of([10 * page + offset for page in pages for offset in range(PAGE)] + [9] * extra)


def keep(cache: RadixCache, key: Key) -> list[int]:
    """Insert `key` as a request would that computed all of it."""
    prefix = cache.insert(key, cache.pool.allocate(len(key) // PAGE_BYTES))
    return prefix.pages


def test_match_finds_whole_pages_only() -> None:
    cache = RadixCache(PagePool(8, PAGE))
    pages = keep(cache, tokens(1, 2, 3, extra=2))

    assert cache.match(tokens(1, 2, 3)).pages == pages
    assert cache.match(tokens(1, 2, extra=3)).pages == pages[:2]
    assert cache.match(tokens(1)[:-WIDTH]).pages == []
    assert cache.match(b"").pages == []


def test_match_ends_inside_an_edge() -> None:
    cache = RadixCache(PagePool(16, PAGE))
    pages = keep(cache, tokens(1, 2, 3, 4, 5))

    assert cache.match(tokens(1, 2, 9)).pages == pages[:2]
    assert cache.match(tokens(1, 2, 3, 4, 5)).pages == pages


def test_peek_agrees_with_match_and_changes_nothing() -> None:
    cache = RadixCache(PagePool(16, PAGE))
    keep(cache, tokens(1, 2, 3))
    before = len(list(cache.nodes()))

    assert cache.peek(tokens(1, 2, 8)) == 2 * PAGE
    assert len(list(cache.nodes())) == before
    assert len(cache.match(tokens(1, 2, 8)).pages) == 2


def test_duplicate_insert_frees_the_callers_pages_and_returns_the_trees() -> None:
    pool = PagePool(8, PAGE)
    cache = RadixCache(pool)
    first = keep(cache, tokens(1, 2))
    own = pool.allocate(3)

    kept = cache.insert(tokens(1, 2, 3), own)

    assert kept.pages == [*first, own[2]]
    assert (pool.free_pages, pool.states.count(HELD), pool.states.count(CACHED)) == (5, 0, 3)


def test_insert_below_a_known_beginning_is_insert_of_all() -> None:
    pool = PagePool(16, PAGE)
    cache = RadixCache(pool)
    first = keep(cache, tokens(1, 2, 3))
    begun = cache.match(tokens(1, 2))
    cache.lock(begun.node)
    keep(cache, tokens(7, 8))
    own = pool.allocate(3)

    kept = cache.insert(tokens(1, 2, 3, 4, 5, extra=1), [*begun.pages, *own], begun.node, 2)

    assert kept.pages == [first[2], *own[1:]]
    assert cache.match(tokens(1, 2, 3, 4, 5)).pages == [*first, *own[1:]]
    assert pool.states.count(HELD) == 0
    cache.lock(kept.node, begun.node)
    assert cache.evictable_pages == 2
    cache.unlock(kept.node)
    assert cache.evict(3) == 3
    assert cache.peek(tokens(7, 8)) == 0
    assert cache.peek(tokens(1, 2, 3, 4, 5)) == 4 * PAGE


def test_least_recently_used_leaf_goes_first_from_its_end() -> None:
    cache = RadixCache(PagePool(8, PAGE))
    keep(cache, tokens(1, 2, 3))
    keep(cache, tokens(4, 5))
    cache.match(tokens(1, 2, 3))

    assert cache.evict(1) == 1
    assert cache.peek(tokens(4, 5)) == PAGE
    assert cache.evict(3) == 3
    assert cache.peek(tokens(4, 5)) == 0
    assert cache.peek(tokens(1, 2, 3)) == PAGE
    assert cache.evicted_pages == 4


def test_shared_beginning_outlives_its_branches() -> None:
    cache = RadixCache(PagePool(8, PAGE))
    keep(cache, tokens(1, 2))
    keep(cache, tokens(1, 3))

    cache.evict(2)

    assert cache.peek(tokens(1)) == PAGE
    assert cache.pool.states.count(CACHED) == 1


def test_locked_path_is_never_evicted() -> None:
    cache = RadixCache(PagePool(8, PAGE))
    keep(cache, tokens(1, 2, 3))
    node = cache.match(tokens(1, 2)).node
    cache.lock(node)

    assert cache.evictable_pages == 1
    assert cache.evict(8) == 1
    assert cache.peek(tokens(1, 2, 3)) == 2 * PAGE
    cache.unlock(node)
    assert cache.evict(8) == 2


def test_lock_survives_a_split() -> None:
    cache = RadixCache(PagePool(8, PAGE))
    keep(cache, tokens(1, 2, 3))
    node = cache.match(tokens(1, 2, 3)).node
    cache.lock(node)
    keep(cache, tokens(1, 4))

    assert cache.evict(8) == 1
    assert cache.peek(tokens(1, 2, 3)) == 3 * PAGE
    cache.unlock(node)
    cache.flush()
    assert cache.pool.free_pages == 8


def test_min_len_keeps_short_prefixes_out() -> None:
    pool = PagePool(16, PAGE)
    cache = RadixCache(pool, min_len=10)
    own = pool.allocate(2)

    assert cache.insert(tokens(1, 2), own).pages == []
    assert pool.states.count(HELD) == 2
    keep(cache, tokens(1, 2, 3))
    keep(cache, tokens(1, 5, 6))
    assert cache.match(tokens(1, 2, 3)).pages
    assert cache.match(tokens(1, 2, 9)).pages == []
    assert cache.peek(tokens(1, 9, 9)) == 0


def test_disabled_cache_keeps_nothing() -> None:
    pool = PagePool(4, PAGE)
    cache = RadixCache(pool, enabled=False)
    own = pool.allocate(2)

    assert cache.insert(tokens(1, 2), own).pages == []
    assert cache.match(tokens(1, 2)).pages == []
    assert pool.states.count(HELD) == 2


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=20), st.integers(0, 6))
def test_matches_are_the_longest_common_page_prefix(prompts: list[list[int]], evicted: int) -> None:
    pool = PagePool(200, PAGE)
    cache = RadixCache(pool)
    kept: list[Key] = []
    for prompt in prompts:
        key = tokens(*prompt, extra=len(prompt) % PAGE)
        best = max((_common_pages(key, other) for other in kept), default=0)
        assert len(cache.match(key).pages) == best
        keep(cache, key)
        kept.append(key)
        assert pool.states.count(HELD) == 0
        assert pool.states.count(CACHED) == sum(len(node.pages) for node in cache.nodes()) == cache.evictable_pages
    evictable = cache.evictable_pages
    assert cache.evict(evicted) == min(evicted, evictable)
    cache.flush()
    assert pool.free_pages == 200
    assert not list(cache.nodes())


def test_a_page_keeps_the_content_it_was_inserted_with() -> None:
    """The tree never maps two different token prefixes to one page."""
    rng = random.Random(0)
    pool = PagePool(24, PAGE)
    cache = RadixCache(pool)
    content: dict[int, Key] = {}
    for _ in range(500):
        key = tokens(*(rng.randrange(3) for _ in range(rng.randrange(1, 6))))
        found = cache.match(key)
        for index, page in enumerate(found.pages):
            assert content[page] == key[: (index + 1) * PAGE_BYTES]
        need = len(key) // PAGE_BYTES - len(found.pages)
        cache.lock(found.node)
        cache.evict(max(0, need - pool.free_pages))
        pages = [*found.pages, *pool.allocate(need)]
        kept = cache.insert(key, pages, found.node, len(found.pages))
        cache.unlock(found.node)
        for index, page in enumerate([*found.pages, *kept.pages]):
            content[page] = key[: (index + 1) * PAGE_BYTES]


def _common_pages(one: Key, other: Key) -> int:
    pages = 0
    while (end := (pages + 1) * PAGE_BYTES) <= min(len(one), len(other)) and one[:end] == other[:end]:
        pages += 1
    return pages
