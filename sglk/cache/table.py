"""The page table of one request."""

from array import array

from sglk.cache.pages import PagePool
from sglk.cache.radix import Key, Prefix, RadixCache


class PageTable:
    """Where the KV of one request lives: pages read from the prefix cache under a lock, then pages it holds itself."""

    __slots__ = ("_cache", "_pool", "capacity", "node", "pages", "shared")

    def __init__(self, pool: PagePool, cache: RadixCache) -> None:
        self._pool = pool
        self._cache = cache
        self.node = cache.root
        """Where the shared prefix ends in the tree."""
        self.shared = 0
        """Leading pages that belong to the prefix cache."""
        self.pages = array("q")
        """Pages of positions 0, page_size, 2 * page_size, ...; quick to make a tensor of."""
        self.capacity = 0
        """Tokens that the pages hold; read for every request in every step."""

    def open(self, key: Key) -> int:
        """Start with the longest cached prefix of `key`; return its length in tokens."""
        assert not self.pages
        self._adopt(self._cache.match(key))
        return self.capacity

    def missing_pages(self, num_tokens: int) -> int:
        """Return how many more pages `num_tokens` tokens take."""
        return max(0, self._pool.pages_for(num_tokens) - len(self.pages))

    def reserve(self, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens, evicting prefixes if need be; False when the pool has too little."""
        missing, pool, pages = self.missing_pages(num_tokens), self._pool, self.pages
        if not missing:
            return True
        short = missing - pool.free_pages
        if short > 0 and self._cache.evict(short) < short:
            return False
        pages.extend(pool.allocate(missing, pages[-1] if pages else None))
        self.capacity = len(pages) * pool.page_size
        return True

    def grow(self) -> bool:
        """Add one page, evicting a prefix's last if need be; False when there is none."""
        pool = self._pool
        if not pool.free_pages and not self._cache.evict(1):
            return False
        self.pages.append(pool.take(self.pages[-1]))
        self.capacity += pool.page_size
        return True

    def share(self, key: Key) -> None:
        """Offer the computed KV of the tokens of `key` to the prefix cache and go on reading it from there."""
        self._adopt(self._cache.insert(key, self.pages, self.node, self.shared))

    def close(self, key: Key = b"") -> None:
        """Give all pages back; the prefix cache keeps the KV of the tokens of `key`, which must be computed."""
        if key:
            self.share(key)
        self._pool.free(self.pages[self.shared :])
        self._cache.unlock(self.node)
        self.node, self.shared, self.pages, self.capacity = self._cache.root, 0, array("q"), 0

    def _adopt(self, prefix: Prefix) -> None:
        """Read what follows the shared pages from the tree, too."""
        if not prefix.pages:
            return
        self._cache.lock(prefix.node, self.node)
        end = self.shared + len(prefix.pages)
        self.pages[self.shared : end] = array("q", prefix.pages)
        self.node, self.shared, self.capacity = prefix.node, end, len(self.pages) * self._pool.page_size
