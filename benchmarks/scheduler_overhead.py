"""What the host spends on a step besides the model: scheduling, prefix cache, batch building, taking the tokens.

The runner is null: it returns a token for each row. While 256 requests decode, the tree holds 100,000 tokens more.
"""

import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.result import Row, main
from sglk.attention.paged import page_table
from sglk.cache.pages import PagePool
from sglk.cache.radix import RadixCache
from sglk.config.schema import RuntimeConfig
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.engine.scheduler import Scheduler

RUNNING = 256
TREE_TOKENS = 100_000
PROMPT = 4000
ROW_TOKENS = 1000
STEP_BAR_MS = 1.0
MATCH_BAR_MS = 0.2

Tokens = tuple[int, ...]


def measure(quick: bool) -> list[Row]:
    """Time steps and matches for small, usual and large pages."""
    steps = 100 if quick else 1000
    return [row for page_size in (1, 16, 128) for row in page_size_rows(page_size, steps)]


def page_size_rows(page_size: int, steps: int) -> Iterator[Row]:
    """Yield the figures for one page size."""
    pages = f"pages of {page_size}"
    some, all_ms = (decode_step_ms(running, page_size, steps) for running in (RUNNING // 4, RUNNING))
    yield Row(f"decode step, {RUNNING} running, {pages}", all_ms, "ms", "bar, at most", STEP_BAR_MS)
    yield Row(f"decode step, {RUNNING} running, {pages}", all_ms, "ms", f"4 x that of {RUNNING // 4}", 4 * some)
    yield Row(f"page table of {RUNNING} rows of {ROW_TOKENS} tokens, {pages}", page_table_ms(page_size, steps), "ms")
    admission = admission_step_ms(page_size, steps // 10)
    yield Row(f"admission of one request beside them, {pages}", admission, "ms", "bar, at most", STEP_BAR_MS)
    match = match_ms(page_size, steps)
    yield Row(f"match of {PROMPT} tokens, {pages}", match, "ms", "bar, at most", MATCH_BAR_MS)


def decode_step_ms(running: int, page_size: int, steps: int) -> float:
    """Return the median time of a step in which `running` requests decode."""
    rig = Rig(running, page_size)
    rig.fill(running)
    return median_ms(rig.step, steps)


def admission_step_ms(page_size: int, steps: int) -> float:
    """Return the median time of a step that admits a request whose prompt is in the cache, most of it."""
    rig = Rig(RUNNING + 1, page_size)
    rig.fill(RUNNING)
    times = []
    for _ in range(steps):
        rig.add(rig.known[0][:PROMPT], max_new_tokens=1)
        times.append(seconds(rig.step))
        rig.step()
    return statistics.median(times) * 1000


def page_table_ms(page_size: int, repeats: int) -> float:
    """Return the median time of laying out the pages of all rows for the device."""
    count = -(-ROW_TOKENS // page_size)
    pages = [array("q", range(row * count, (row + 1) * count)) for row in range(RUNNING)]
    lens = np.full(RUNNING, ROW_TOKENS)
    return median_ms(lambda: page_table(pages, lens, page_size), repeats)


def match_ms(page_size: int, repeats: int) -> float:
    """Return the median time of looking up a prompt that the tree has over several of its nodes."""
    rig = Rig(1, page_size)
    for shared in range(500, PROMPT, 500):
        rig.keep(rig.known[0][:shared] + fresh_tokens(rig.rng, 500))
    prompt = array("I", rig.known[0][:PROMPT]).tobytes()
    return median_ms(lambda: rig.cache.match(prompt), repeats)


class Rig:
    """A scheduler on a null runner, with a tree of TREE_TOKENS tokens that nobody reads."""

    def __init__(self, window: int, page_size: int) -> None:
        runtime = RuntimeConfig(max_running_requests=window, page_size=page_size, max_prefill_tokens=10**6)
        self.rng = random.Random(0)
        self.pool = PagePool(4 * TREE_TOKENS // page_size + 32 * window, page_size)
        self.cache = RadixCache(self.pool)
        self.scheduler = Scheduler(runtime, self.pool, self.cache, context_length=8192)
        self.known = [fresh_tokens(self.rng, TREE_TOKENS // 20) for _ in range(20)]
        self.number = 0
        for tokens in self.known:
            self.keep(tokens)

    def keep(self, tokens: Tokens) -> None:
        """Put `tokens` into the tree."""
        key = array("I", tokens).tobytes()
        prefix = self.cache.match(key)
        self.cache.lock(prefix.node)
        missing = self.pool.pages_for(len(tokens)) - len(prefix.pages)
        pages = [*prefix.pages, *self.pool.allocate(missing)]
        self.cache.insert(key, pages, prefix.node, len(prefix.pages))
        self.cache.unlock(prefix.node)

    def add(self, prompt: Tokens, max_new_tokens: int | None = None) -> None:
        """Queue a request."""
        self.number += 1
        sampling = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=True)
        self.scheduler.add(GenerateRequest(str(self.number), prompt, sampling))

    def fill(self, running: int) -> None:
        """Run until `running` requests decode."""
        for _ in range(running):
            self.add(fresh_tokens(self.rng, 64), max_new_tokens=4000)
        while self.scheduler.num_waiting:
            self.step()
        self.step()

    def step(self) -> None:
        """Schedule, and take a token for each row."""
        batch = self.scheduler.schedule()
        assert batch is not None
        self.scheduler.update(batch, [7 if row.samples else None for row in batch.rows])


def fresh_tokens(rng: random.Random, count: int) -> Tokens:
    """Return random tokens."""
    return tuple(rng.choices(range(50_000), k=count))


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Return the median time of `run` in milliseconds."""
    return statistics.median([seconds(run) for _ in range(repeats)]) * 1000


def seconds(run: Callable[[], object]) -> float:
    """Return how long `run` takes on the processor, which other programs do not add to."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


if __name__ == "__main__":
    raise SystemExit(main("scheduler_overhead", measure, ("numpy",)))
