"""Who holds which page of the KV pool."""

from collections.abc import Sequence

FREE, HELD, CACHED = 0, 1, 2

_HELD = bytes([HELD])


class PagePool:
    """Account of a fixed number of KV pages; each is free, held by one request, or owned by the prefix cache.

    The state of all pages is one byte string, so that a contiguous run of free pages is found by a substring search.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._state = bytearray(num_pages)
        self._cursor = 0
        self.free_pages = num_pages
        """Pages that nobody uses."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the whole pool holds."""
        return self.num_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages `num_tokens` tokens take."""
        return -(-num_tokens // self.page_size)

    @property
    def states(self) -> bytes:
        """FREE, HELD or CACHED for each page: nobody's, one live request's, or the prefix cache's (read or not)."""
        return bytes(self._state)

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """Take `count` free pages, in one run where there is one, and best behind page `after`.

        The caller makes sure that there are enough.
        """
        assert count <= self.free_pages, f"{count} pages wanted, {self.free_pages} free"
        first = self._find(count, self._cursor if after is None else after + 1)
        if first < 0:
            pages = self._scattered(count)
            self._move(pages, FREE, HELD)
        else:
            pages = list(range(first, first + count))
            self._state[first : first + count] = _HELD * count
        self.free_pages -= count
        return pages

    def take(self, after: int) -> int:
        """Take one free page, best the one behind page `after`; the caller makes sure that there is one."""
        state, page = self._state, after + 1
        if page == len(state) or state[page] != FREE:
            page = state.find(FREE, self._cursor)
            if page < 0:
                page = state.find(FREE)
            self._cursor = page + 1
        state[page] = HELD
        self.free_pages -= 1
        return page

    def adopt(self, pages: Sequence[int]) -> None:
        """Make the prefix cache the owner of `pages`, which a request held."""
        self._move(pages, HELD, CACHED)

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back that a request held."""
        self._move(pages, HELD, FREE)
        self.free_pages += len(pages)

    def evict(self, pages: Sequence[int]) -> None:
        """Give pages back that the prefix cache owned."""
        self._move(pages, CACHED, FREE)
        self.free_pages += len(pages)

    def _find(self, count: int, start: int) -> int:
        """Return the first of `count` free pages in a row, best from `start` on; -1 where there are none."""
        run = bytes(count)
        if self._state.startswith(run, start):
            return start
        first = self._state.find(run, self._cursor)
        if first < 0:
            first = self._state.find(run)
        if first >= 0:
            # The search goes on where it ended: what lies before is taken, more often than not.
            self._cursor = first + count
        return first

    def _scattered(self, count: int) -> list[int]:
        pages: list[int] = []
        page = -1
        for _ in range(count):
            page = self._state.find(FREE, page + 1)
            pages.append(page)
        return pages

    def _move(self, pages: Sequence[int], source: int, target: int) -> None:
        state = self._state
        for page in pages:
            assert state[page] == source, f"page {page} is in state {state[page]}, not {source}"
            state[page] = target
