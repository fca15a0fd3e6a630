"""A scheduler on a scripted runner, stepped by hand, with its books checked after every step."""

import random
from collections.abc import Sequence
from typing import Any

from sglk.cache.pages import CACHED, FREE, HELD, PagePool
from sglk.cache.radix import WIDTH, RadixCache
from sglk.config.schema import RuntimeConfig
from sglk.engine import policy
from sglk.engine.batch import Batch
from sglk.engine.isolation import run_rows
from sglk.engine.messages import GenerateRequest, SamplingParams
from sglk.engine.request import Request
from sglk.engine.scheduler import Scheduler
from sglk.testing.scripted import ScriptedRunner


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)


GREEDY = greedy(8)
LONG = greedy(200)


class Rig:
    """One scheduler with its pool, cache and runner; `settings` are runtime parameters."""

    def __init__(
        self, pool_tokens: int = 4096, context_length: int = 256, runner: ScriptedRunner | None = None, **settings: Any
    ) -> None:
        self.runtime = RuntimeConfig(**settings)
        self.runner = runner or ScriptedRunner(context_length=context_length)
        self.pool = PagePool(pool_tokens // self.runtime.page_size, self.runtime.page_size)
        self.runner.allocate_kv(self.pool.num_pages, self.pool.page_size)
        self.cache = RadixCache(
            self.pool, min_len=self.runtime.radix_min_len, enabled=not self.runtime.disable_radix_cache
        )
        self.scheduler = Scheduler(self.runtime, self.pool, self.cache, context_length)
        self.live: dict[str, Request] = {}
        self.done: dict[str, Request] = {}
        self.batches: list[Batch] = []
        self.idle: dict[str, int] = {}

    def add(self, name: str, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> Request:
        request = self.scheduler.add(GenerateRequest(name, tuple(prompt), sampling))
        self.live[name] = request
        return request

    def step(self) -> list[str]:
        """Run one step; return the requests that finished."""
        decoding, waiting = list(self.scheduler.decoding), list(self.scheduler._waiting.values())
        overdue = [request for request in waiting if self._is_late(request)]
        batch = self.scheduler.schedule()
        assert batch is not None
        self.check()
        self._check_order(batch, waiting, overdue)
        self._check_progress(batch, [name for name in decoding if name in self.scheduler.decoding])
        self.batches.append(batch)
        finished = []
        for request in self.scheduler.update(batch, run_rows(self.runner, batch)):
            if request.finish is not None:
                finished.append(request.request_id)
                self.done[request.request_id] = self.live.pop(request.request_id)
        self.check()
        return finished

    def drop(self, name: str, *, keep_kv: bool = True) -> None:
        self.scheduler.remove(name, keep_kv=keep_kv)
        del self.live[name]
        self.check()

    def finish(self, limit: int = 10_000) -> dict[str, list[int]]:
        """Run until nothing is left; return the answers of all requests so far."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "no end in sight"
        assert self.scheduler.schedule() is None
        return {name: answer(request) for name, request in self.done.items()}

    def check(self) -> None:
        """Every page has one owner, what live requests read is locked, and no more of them run than may."""
        pool, nodes = self.pool, list(self.cache.nodes())
        states = pool.states
        assert states.count(FREE) == pool.free_pages
        in_tree = [page for node in nodes for page in node.pages]
        held = [page for request in self.live.values() for page in request.table.pages[request.table.shared :]]
        assert sorted(in_tree) == [page for page, state in enumerate(states) if state == CACHED]
        assert sorted(held) == [page for page, state in enumerate(states) if state == HELD]
        assert self.scheduler.num_running <= self.runtime.max_running_requests
        assert self.cache.evictable_pages == sum(len(node.pages) for node in nodes if not node.locks)
        for node in nodes:
            assert len(node.key) == len(node.pages) * pool.page_size * WIDTH
            assert node.locks or node.children or node.queued, "an evictable leaf that eviction does not know"
        self._check_locks()

    def _check_progress(self, batch: Batch, decoding: list[str]) -> None:
        """What decodes gets a token in every second step, or in every one, and no step is longer than it may be."""
        computed = {row.request_id for row in batch.rows}
        self.idle = {name: 0 if name in computed else self.idle.get(name, 0) + 1 for name in decoding}
        assert max(self.idle.values(), default=0) <= (0 if self.runtime.enable_mixed_chunk else 1)
        prefills, decodes = batch.rows[: batch.num_prefills], batch.rows[batch.num_prefills :]
        assert all(row.samples and len(row.input_ids) == 1 for row in decodes)
        assert self.runtime.enable_mixed_chunk or not (prefills and decodes)
        unchunked = self.runtime.chunked_prefill_size == -1 and len(prefills) == 1
        assert unchunked or sum(len(row.input_ids) for row in prefills) <= self.runtime.max_prefill_tokens

    def _is_late(self, request: Request) -> bool:
        return request.admissions > 0 or self.scheduler._pass - request.queued_at >= policy.MAX_PASSES

    def _check_order(self, batch: Batch, waiting: list[Request], overdue: list[Request]) -> None:
        """Nobody is overtaken who waited long or was retracted, but while the prompt that it shares is computed."""
        queue = self.scheduler._waiting
        admitted = [request for request in waiting if request.request_id not in queue]
        leads = [self.live[row.request_id].lead for row in batch.rows[: batch.num_prefills]]
        for request in overdue:
            if request.request_id in queue and admitted and waiting.index(admitted[-1]) > waiting.index(request):
                most = len(request.tokens)
                assert any(request.beginning(most).startswith(lead) for lead in leads if lead is not None)

    def _check_locks(self) -> None:
        wanted: dict[int, int] = {}
        for request in self.live.values():
            node, path = request.table.node, []
            while node.parent is not None:
                wanted[id(node)] = wanted.get(id(node), 0) + 1
                path[:0] = node.pages
                node = node.parent
            assert path == request.table.pages[: request.table.shared].tolist()
        assert all(node.locks == wanted.get(id(node), 0) for node in self.cache.nodes())


def answer(request: Request) -> list[int]:
    return request.tokens[len(request.prompt_ids) :].tolist()


def alone(prompt: Sequence[int], sampling: SamplingParams = GREEDY, **rig: Any) -> list[int]:
    """The answer when the request runs by itself: no cache, no chunks, plenty of memory."""
    one = Rig(disable_radix_cache=True, chunked_prefill_size=-1, **rig)
    one.add("alone", prompt, sampling)
    return one.finish()["alone"]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)
