"""The prefix cache: which token prefixes have their KV in the pool already, and in which pages."""

import heapq
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from sglk.cache.pages import PagePool

Key = bytes
"""Token ids, WIDTH bytes each: copied, compared and hashed at once, and far smaller than numbers of Python's."""

WIDTH = array("I").itemsize


class Node:
    """An edge of the tree: tokens (whole pages), the pages that hold their KV, and who needs them."""

    __slots__ = ("children", "key", "last_used", "locks", "pages", "parent", "queued")

    def __init__(self, key: Key, pages: list[int], parent: "Node | None") -> None:
        self.key = key
        self.pages = pages
        self.parent = parent
        self.children: dict[Key, Node] = {}
        self.locks = 0
        self.last_used = 0
        self.queued = False


@dataclass(slots=True)
class Prefix:
    """A cached prefix, or what follows one: its pages in order, and the node at which it ends.

    Lock the node before anything that may evict.
    """

    node: Node
    pages: list[int]


class RadixCache:
    """Radix tree over token pages with least-recently-used eviction.

    Prefixes are matched and kept in whole pages. Those shorter than `min_len` tokens are neither kept nor reused, so
    that short prompts in common (a greeting, a template header) do not fragment the pool. Every page of the tree
    belongs to the tree; a request that reads it holds a lock on its node, which keeps the path to the root in place.
    """

    def __init__(self, pool: PagePool, *, min_len: int = 0, enabled: bool = True) -> None:
        self.pool = pool
        self.enabled = enabled
        self.root = Node(b"", [], None)
        self.evictable_pages = 0
        """Pages of the tree that no live request reads."""
        self.evicted_pages = 0
        """Pages evicted so far."""
        self.version = 0
        """Grows whenever the set of cached prefixes changes."""
        self._min_len = min_len
        self._page_size = pool.page_size
        self._page_bytes = pool.page_size * WIDTH
        self._ticks = count(1)
        self._leaves: list[tuple[int, int, Node]] = []
        """Heap by last use; has every unlocked leaf, and stale entries that are dropped when they come up."""

    def peek(self, key: Key) -> int:
        """Return how many tokens of `key` `match` would find, and change nothing."""
        node, length = self.root, 0
        while child := node.children.get(key[length : length + self._page_bytes]):
            shared = self._shared_bytes(child.key, key, length)
            length += shared
            if shared < len(child.key):
                break
            node = child
        return self._worthwhile(length // WIDTH)

    def match(self, key: Key) -> Prefix:
        """Return the longest cached prefix of `key`, in whole pages, and mark it as used now."""
        prefix = self._walk(key, self.root, 0)
        if not self._worthwhile(len(prefix.pages) * self._page_size):
            return Prefix(self.root, [])
        return prefix

    def insert(self, key: Key, pages: Sequence[int], above: Node | None = None, known: int = 0) -> Prefix:
        """Keep the KV of the tokens of `key`, as far as it fills whole pages.

        `pages` hold it: first the `known` ones of the tree up to the node `above`, which the caller has locked, then
        those it holds. The pages returned replace the first of the latter: where the tree had the same tokens already,
        the tree's page is returned and the caller's duplicate freed. Without any, nothing was taken over.
        """
        full = len(key) // self._page_bytes
        if not self.enabled or not self._worthwhile(full * self._page_size):
            return Prefix(self.root, [])
        assert full >= known
        key = key[: full * self._page_bytes]
        prefix = self._walk(key, above or self.root, known)
        found = known + len(prefix.pages)
        if prefix.pages:
            self.pool.free(pages[known:found])
        if found == full:
            return prefix
        fresh = list(pages[found:full])
        leaf = self._add_leaf(prefix.node, key[found * self._page_bytes :], fresh)
        return Prefix(leaf, prefix.pages + fresh)

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Keep the path to `node` in place until `unlock`; the caller's lock on `above` becomes a part of it."""
        while node.parent is not None and node is not above:
            if node.locks == 0:
                self.evictable_pages -= len(node.pages)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        while node.parent is not None:
            assert node.locks > 0
            node.locks -= 1
            if node.locks == 0:
                self.evictable_pages += len(node.pages)
                self._enqueue(node)
            node = node.parent

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` pages, least recently used leaves first and their ends first; return how many."""
        freed = 0
        while freed < num_pages and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            node.queued = False
            if node.locks or node.children:
                continue
            if node.last_used != last_used:
                self._enqueue(node)
                continue
            freed += self._trim(node, num_pages - freed)
        return freed

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root, parents first."""
        pending = list(self.root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending += node.children.values()

    def flush(self) -> None:
        """Free every page that no live request reads."""
        self.evict(self.evictable_pages)

    def dismantle(self) -> None:
        """Let go of all nodes, at the end: parents and children hold each other until the garbage is looked for."""
        for node in self.nodes():
            node.parent = None
        self._leaves.clear()

    def _worthwhile(self, length: int) -> int:
        return length if length >= self._min_len else 0

    def _shared_bytes(self, edge: Key, key: Key, start: int) -> int:
        """Bytes that `edge` and `key[start:]` share, in whole pages; the first page is known to be equal."""
        if key.startswith(edge, start):
            return len(edge)
        size = self._page_bytes
        most = min(len(edge), (len(key) - start) // size * size)
        if key.startswith(edge[:most], start):
            return most
        low, high = 1, most // size  # `low` pages are equal, `high` pages are not
        while high - low > 1:
            middle = (low + high) // 2
            if key.startswith(edge[low * size : middle * size], start + low * size):
                low = middle
            else:
                high = middle
        return low * size

    def _walk(self, key: Key, node: Node, known: int) -> Prefix:
        """Go on from `node`, where the first `known` pages of `key` end; return the others that the tree has."""
        length, now = known * self._page_bytes, next(self._ticks)
        above = node
        while above.parent is not None:
            above.last_used = now
            above = above.parent
        pages: list[int] = []
        while child := node.children.get(key[length : length + self._page_bytes]):
            shared = self._shared_bytes(child.key, key, length)
            if shared < len(child.key):
                child = self._split(child, shared)
            child.last_used = now
            pages += child.pages
            length += shared
            node = child
        return Prefix(node, pages)

    def _split(self, node: Node, length: int) -> Node:
        """Put a node with the first `length` bytes of the key of `node` above it; locks on `node` hold for both."""
        assert node.parent is not None
        size, pages = self._page_bytes, length // self._page_bytes
        upper = Node(node.key[:length], node.pages[:pages], node.parent)
        upper.locks = node.locks
        node.parent.children[upper.key[:size]] = upper
        node.key, node.pages, node.parent = node.key[length:], node.pages[pages:], upper
        upper.children[node.key[:size]] = node
        return upper

    def _add_leaf(self, parent: Node, key: Key, pages: list[int]) -> Node:
        leaf = Node(key, pages, parent)
        leaf.last_used = next(self._ticks)
        parent.children[key[: self._page_bytes]] = leaf
        self.pool.adopt(pages)
        self.evictable_pages += len(pages)
        self.version += 1
        self._enqueue(leaf)
        return leaf

    def _enqueue(self, node: Node) -> None:
        if node.queued or node.locks or node.children or node.parent is None:
            return
        node.queued = True
        heapq.heappush(self._leaves, (node.last_used, next(self._ticks), node))

    def _trim(self, leaf: Node, num_pages: int) -> int:
        kept = max(0, len(leaf.pages) - num_pages)
        gone = leaf.pages[kept:]
        self.pool.evict(gone)
        self.evictable_pages -= len(gone)
        self.evicted_pages += len(gone)
        self.version += 1
        if kept:
            leaf.key = leaf.key[: kept * self._page_bytes]
            del leaf.pages[kept:]
            self._enqueue(leaf)
        else:
            self._detach(leaf)
        return len(gone)

    def _detach(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key[: self._page_bytes]]
        leaf.parent = None
        self._enqueue(parent)
