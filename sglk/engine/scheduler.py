"""Continuous batching: which tokens of which requests are computed in the next step."""

import random
from collections import OrderedDict
from collections.abc import Sequence

from sglk.cache.pages import PagePool
from sglk.cache.radix import WIDTH, RadixCache
from sglk.cache.table import PageTable
from sglk.config.schema import RuntimeConfig
from sglk.engine.admission import NewTokenRatio
from sglk.engine.batch import Batch, BatchRow, RowFailure, RowResult
from sglk.engine.decoding import Decoding
from sglk.engine.guide import Guide
from sglk.engine.logits import logit_rules
from sglk.engine.messages import Finish, GenerateRequest
from sglk.engine.policy import find_policy
from sglk.engine.prefill import Lead, PrefillStep, chunk_size
from sglk.engine.request import Request

LEAD_TOKENS = 64
"""How much of a beginning that requests share, beyond what is cached, a step computes again before they wait for it."""

MAX_PASSED_OVER = 32
"""Waiting requests that a step passes over for that reason before it stops looking for others."""

MAX_SCORED_TOKENS = 512
"""Prompt tokens of a step whose logprobs are asked for: each takes a row of logits."""


class Scheduler:
    """Turns a queue of requests into batches, and their tokens into progress; knows neither device nor text.

    Use it as `add`, then `schedule`, run the batch, `update`, again and again. A request is waiting, prefilling (at
    most one whose prompt takes several steps) or decoding.

    Prefill comes first, yet neither long prompts nor steady arrivals stop what decodes: a decoding request gets a token
    at least every second step, so between two tokens lies at most one prefill step. With `enable_mixed_chunk` prompts
    and decodes share every step, and a decoding request gets a token in each. In both schemes a step computes at most
    `max_prefill_tokens` prompt tokens (or one prompt that is not to be chunked). Only retraction makes an exception.

    Of waiting requests that share a beginning which is not cached, one goes ahead (of a short one some more) and the
    others wait until its prompt is computed, to read it from the cache.

    Prompt and answer of a request fit the KV pool by construction (`add` limits the answer to the room that is left).
    So when KV runs out, requests go back to the head of the queue (the one that prefills first, then those with the
    fewest generated tokens), and the last one left can always finish, with `length` at the latest.
    """

    def __init__(
        self,
        runtime: RuntimeConfig,
        pool: PagePool,
        cache: RadixCache,
        context_length: int,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.pool = pool
        self.cache = cache
        self.max_request_tokens = min(context_length, pool.num_tokens)
        """Most tokens of one request, prompt and answer together."""
        self.prompt_tokens = 0
        """Prompt tokens of all requests admitted so far."""
        self.cached_prompt_tokens = 0
        """Part of `prompt_tokens` answered from the prefix cache."""
        self.retractions = 0
        self.decoding = Decoding()
        self._eos_token_ids = eos_token_ids
        self._max_running = runtime.max_running_requests
        self._max_prefill_tokens = runtime.max_prefill_tokens
        self._mixes = runtime.enable_mixed_chunk
        self._chunk_size = chunk_size(runtime)
        self._radix_min_len = runtime.radix_min_len
        self._order = find_policy(runtime.schedule_policy)
        self._ratio = NewTokenRatio(runtime.schedule_conservativeness)
        self._seeds = random.Random(runtime.random_seed)
        self._pass = 0
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._prefilling: Request | None = None
        self._prefilled_last = False

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that prefill or decode."""
        return len(self.decoding) + (self._prefilling is not None)

    @property
    def has_work(self) -> bool:
        """Whether `schedule` will return a batch."""
        return bool(self._waiting or self.decoding or self._prefilling)

    def find(self, request_id: str) -> Request | None:
        """Return the live request of that id."""
        if self._prefilling is not None and self._prefilling.request_id == request_id:
            return self._prefilling
        request = self.decoding.get(request_id)
        if request is None:
            return self._waiting.get(request_id)
        self.decoding.catch_up((request,))
        return request

    def add(self, request: GenerateRequest, guide: Guide | None = None) -> Request:
        """Queue a request; its prompt has at least 1 and at most `max_request_tokens - 1` tokens.

        `guide` leads through `sampling.grammar`.
        """
        room = self.max_request_tokens - len(request.prompt_ids)
        assert request.prompt_ids
        assert room > 0
        if not self.has_work:
            self._ratio.reset()
        sampling = request.sampling
        ends = frozenset() if sampling.ignore_eos and guide is None else self._eos_token_ids
        stop_ids = ends | frozenset(sampling.stop_token_ids)
        live = Request(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            sampling=sampling,
            seed=self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed,
            max_new_tokens=room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, room),
            stop_ids=stop_ids,
            table=PageTable(self.pool, self.cache),
            rules=logit_rules(sampling, len(request.prompt_ids), stop_ids, guide),
            queued_at=self._pass,
        )
        self._waiting[live.request_id] = live
        return live

    def schedule(self) -> Batch | None:
        """Return the next step's work, or None when there is none."""
        if not self.has_work:
            return None
        decodes = self._decode_rows() if self._mixes or self._prefilled_last else []
        prefills = [] if decodes and not self._mixes else self._prefill_rows(len(decodes))
        self._prefilled_last = bool(prefills)
        if not prefills and not decodes:
            decodes = self._decode_rows()
        assert prefills or decodes
        return Batch(prefills + decodes, len(prefills))

    def update(self, batch: Batch, results: Sequence[RowResult | None]) -> list[Request]:
        """Take one result per row of `batch`, None for a row that reports nothing.

        Return the requests that got a token or failed; those with `finish` set have left the scheduler.
        """
        rows, split, decoding = batch.rows, batch.num_prefills, self.decoding
        assert len(rows) == len(results)
        steps = decoding.steps + (len(rows) > split)
        advanced = []
        for row, result in zip(rows[:split], results[:split], strict=True):
            request = self.find(row.request_id)
            if request is None or not self._take(request, row, result):
                continue
            if not isinstance(result, RowFailure):
                request.table.share(request.beginning(request.computed))
                decoding.begin(request, steps)
            if request.finish is not None:
                self.remove(request.request_id)
            advanced.append(request)
        for row, result in zip(rows[split:], results[split:], strict=True):
            request = decoding.get(row.request_id)
            if request is None:
                continue
            # A plain token first: it is what nearly all rows come to.
            if isinstance(result, int):
                # As `append` does it, whose call would be a tenth of the step.
                tokens = request.tokens
                tokens.append(result)
                if result in request.stop_ids or len(tokens) >= request.most_tokens:
                    request.end_with(result)
                request.computed += 1
                # The row of the next step is this one, moved on, since making one takes far longer.
                row.input_ids = (result,)
                row.start += 1
                row.num_generated += 1
            elif self._take(request, row, result):
                request.decode_row = None
            else:
                continue
            if request.finish is not None:
                self.remove(request.request_id)
            advanced.append(request)
        decoding.steps = steps
        return advanced

    def sure_decodes(self) -> int:
        """Return how many of the next steps are sure to decode and nothing else, while nobody comes.

        None retracts a request, and requests end in the last of them alone. Where it is 0, `schedule` knows.
        """
        decoding, page_size = self.decoding, self.pool.page_size
        steps = decoding.sure_steps()
        if self._prefilling is not None or (self._waiting and self.num_running < self._max_running):
            # It is the turn of prompts, or theirs after the next step.
            steps = min(steps, int(self._prefilled_last and not self._mixes))
        if len(decoding) * (steps // page_size + 1) > self._available_pages:
            while steps and len(decoding.growing(steps, page_size)) > self._available_pages:
                steps //= 2
        return steps

    def decode_ahead(self, steps: int) -> None:
        """Do at once what the next `steps` steps do, at most `sure_decodes`, but for the end of the last one."""
        for request in self.decoding.growing(steps, self.pool.page_size):
            request.grow()
        self._ratio.decay(steps)
        self.decoding.steps += steps - 1
        self._prefilled_last = False

    def end_decode(self) -> list[Request]:
        """End the step that `decode_ahead` has begun; return the requests that have left with it."""
        ended = self.decoding.end_step()
        for request in ended:
            self.remove(request.request_id)
        return ended

    def _take(self, request: Request, row: BatchRow, result: RowResult | None) -> bool:
        """Take what a row came to; return whether its request got a token or failed."""
        if isinstance(result, RowFailure):
            self._fail(request, result)
            return True
        request.computed = row.start + len(row.input_ids)
        if isinstance(result, int):
            request.append(result)
            return True
        return result is not None and request.take(result)

    def remove(self, request_id: str, *, keep_kv: bool = True) -> Request | None:
        """Drop a live request and free its pages; the prefix cache keeps its KV unless that may be wrong."""
        request = self.find(request_id)
        if request is None:
            return None
        if request is self._prefilling:
            self._prefilling = None
        self.decoding.leave(request)
        self._waiting.pop(request_id, None)
        request.table.close(request.beginning(request.computed) if keep_kv else b"")
        return request

    def _fail(self, request: Request, failure: RowFailure) -> None:
        """End `request`; what the failed step wrote into its pages is not kept."""
        self.remove(request.request_id, keep_kv=False)
        request.finish = Finish("error", message=f"the step failed: {failure.message}", code=failure.code)

    def _prefill_rows(self, decodes: int) -> list[BatchRow]:
        """Schedule prompt tokens, in a step that `decodes` requests decode in."""
        step = PrefillStep.beside(
            decodes, self._chunk_size, self._max_prefill_tokens, MAX_SCORED_TOKENS, self.pool.page_size
        )
        if self._prefilling is not None:
            request = self._prefilling
            size = step.size(request.pending, bool(request.unscored))
            step.add(self._prefill_row(request, size), request.lead)
        if self._waiting and self.num_running < self._max_running:
            self._admit(step)
        return step.rows

    def _admit(self, step: PrefillStep) -> None:
        """Move waiting requests into the step, in the policy's order, up to the first that does not fit."""
        growth = self._ratio.growth
        expected = growth(self.decoding.left())
        if self._prefilling is not None:
            expected += growth((self._prefilling.left,))
        admitted = passed_over = 0
        for request in self._order(self._waiting.values(), self.cache, self._pass):
            if self.num_running == self._max_running or passed_over == MAX_PASSED_OVER:
                break
            cached = request.table.open(request.beginning(request.reusable))
            lead = self._lead(request, cached)
            if lead in step.leads and step.leads[lead] * (len(lead) // WIDTH - cached) >= LEAD_TOKENS:
                request.table.close()
                passed_over += 1
                continue
            expected += growth((request.left,))
            size = step.size(len(request.tokens) - cached, bool(request.unscored))
            if size == 0 or not self._start(request, cached, size, expected):
                request.table.close()
                break
            request.lead = lead
            del self._waiting[request.request_id]
            step.add(self._prefill_row(request, size), lead)
            admitted += 1
        self._pass += bool(admitted)

    def _lead(self, request: Request, cached: int) -> Lead | None:
        """Return the beginning, cached and then up to LEAD_TOKENS more, that later requests may share with this one."""
        most = self.pool.pages_for(cached + LEAD_TOKENS)
        end = min(most, request.reusable // self.pool.page_size) * self.pool.page_size
        too_short = end <= cached or end < self._radix_min_len
        return None if too_short or not self.cache.enabled else request.beginning(end)

    def _start(self, request: Request, cached: int, size: int, expected: float) -> bool:
        """Give `request` the pages of its prompt, of which the step computes `size` tokens; False = it has to wait.

        `expected` is the KV that the running requests and this one will still add.
        """
        one_partial = cached + size == len(request.tokens) or self._prefilling is None
        if not (one_partial and self._fits_pool(request, expected)):
            return False
        request.table.reserve(len(request.tokens))
        if request.admissions == 0:
            request.cached_tokens = cached
            self.prompt_tokens += len(request.prompt_ids)
            self.cached_prompt_tokens += cached
        request.admissions += 1
        request.computed = cached
        request.decode_row = None
        return True

    def _fits_pool(self, request: Request, expected: float) -> bool:
        spare = self._available_pages - request.table.missing_pages(len(request.tokens))
        if self.num_running == 0:
            assert spare >= 0, "with nobody else running the whole pool is free or evictable"
            return True
        return spare >= 0 and spare * self.pool.page_size >= expected

    @property
    def _available_pages(self) -> int:
        return self.pool.free_pages + self.cache.evictable_pages

    def _prefill_row(self, request: Request, size: int) -> BatchRow:
        """Schedule the next `size` tokens; a request whose last chunk is scheduled counts as decoding from now on."""
        last = size == request.pending
        if request is self._prefilling:
            self._prefilling = None
        if last:
            self.decoding.join(request)
        else:
            self._prefilling = request
        end, unscored = request.computed + size, request.unscored
        return BatchRow(
            request_id=request.request_id,
            input_ids=request.tokens[request.computed : end],
            start=request.computed,
            pages=request.table.pages[: self.pool.pages_for(end)],
            sampling=request.sampling,
            seed=request.seed,
            num_generated=request.num_generated,
            samples=last,
            tokens=request.tokens,
            rules=request.rules,
            scored=range(unscored.start, min(end, unscored.stop)) if unscored else unscored,
        )

    def _decode_rows(self) -> list[BatchRow]:
        self.decoding.catch_up(self.decoding.values())
        if growing := self.decoding.growing(1, self.pool.page_size):
            self._grow(growing)
        if self.decoding:
            self._ratio.decay()
        return [request.decode_row or self._first_decode_row(request) for request in self.decoding.values()]

    def _first_decode_row(self, request: Request) -> BatchRow:
        """Make the row of its last token, which `update` moves on from step to step."""
        tokens = request.tokens
        request.decode_row = BatchRow(
            request_id=request.request_id,
            input_ids=tokens[-1:],
            start=len(tokens) - 1,
            pages=request.table.pages,
            sampling=request.sampling,
            seed=request.seed,
            num_generated=len(tokens) - len(request.prompt_ids),
            samples=True,
            tokens=tokens,
            rules=request.rules,
        )
        return request.decode_row

    def _grow(self, growing: list[Request]) -> None:
        """Give each of these requests the page that its next token takes, retracting others if the pool is full."""
        missing = len(growing)
        if missing > self._available_pages:
            for victim in self._victims():
                missing -= len(victim.tokens) > victim.table.capacity
                self._retract(victim)
                if missing <= self._available_pages:
                    break
            self._ratio.retracted(self.decoding.values())
        for request in growing:
            if request.request_id in self.decoding:
                request.grow()

    def _victims(self) -> list[Request]:
        """Running requests in the order of retraction, without the one that stays: the oldest with the most tokens."""
        newest_first = reversed(self.decoding.values())
        decoding = sorted(newest_first, key=lambda request: request.num_generated)[:-1]
        return [self._prefilling, *decoding] if self._prefilling is not None else decoding

    def _retract(self, request: Request) -> None:
        self.remove(request.request_id)
        request.computed = 0
        self._waiting[request.request_id] = request
        self._waiting.move_to_end(request.request_id, last=False)
        self.retractions += 1
