"""An engine on a virtual clock: the real scheduler, prefix cache, page account and limits, without the model."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sglk.engine.batch import Batch
from sglk.engine.core import Core
from sglk.engine.messages import EngineStats, Finish, GenerateRequest, Output
from sglk.engine.request import Request
from sglk.planner.cost.calibrated import HostTime
from sglk.planner.cost.shape import StepShape, drawn, shared_pages
from sglk.simulation.clock import VirtualClock
from sglk.simulation.times import StepTimes, TokenTimes
from sglk.simulation.tokens import made_up_tokens

StepTime = Callable[[StepShape], float]
"""Seconds from the beginning of a step to that of the next."""

OnBatch = Callable[[Batch], None]

OnOutput = Callable[[Output], None]


@dataclass(slots=True)
class _Answer:
    request: GenerateRequest
    on_output: OnOutput
    times: TokenTimes = field(default_factory=TokenTimes)
    decodes_from: int = 0
    """The first of the engine's steps that `times` lacks."""


class VirtualEngine:
    """Serves requests as `sglk.engine.engine.Engine` does: what came in during a step joins the queue at its end.

    A step takes the time that the cost model gives it, and tokens are made up: they depend on the request's own seed
    and their place in the answer. Callers get a message with the first token and one with the last; by then the time of
    each token is in what `times` has for the request, which its caller may take away.
    """

    failure: str | None = None
    is_alive = True
    stuck_s = 0.0

    def __init__(
        self,
        name: str,
        core: Core,
        step_s: StepTime,
        clock: VirtualClock,
        times: dict[str, TokenTimes],
        on_batch: OnBatch | None = None,
        host: HostTime | None = None,
    ) -> None:
        """Outputs carry `name`; `times` may be shared by engines; `host` is what `step_s` has for the host's part.

        `on_batch` is called with every batch, and makes the engine go through steps one by one that it would pass over.
        """
        self.name = name
        self.core = core
        self.busy_s = 0.0
        """Seconds spent in steps, the host's part of them too."""
        self.peak_tokens = 0
        """Most KV tokens that live requests have held at a time."""
        self._step_s = step_s
        self._on_batch = on_batch
        self._host = host or HostTime()
        self._clock = clock
        self._times = times
        self._counters = EngineStats()
        self._inbox: list[Callable[[], None]] = []
        self._answers: dict[str, _Answer] = {}
        self._steps = StepTimes()
        """All that decoded: every request that is past its prompt gets a token in each."""
        self._tokens = made_up_tokens(core.limits.vocab_size)
        self._running = False
        self._kinship = (0, 0)
        """Of the requests that decode: how many leave their tokens to chance, and the tokens that they share."""
        self._may_be_akin = False
        """Whether that may have changed since."""
        self._first_pages: set[int] = set()
        """Pages that they begin with, and some that others have left."""
        if on_batch is None:
            core.scheduler.decoding.foretold = self._foretold

    def submit(self, request: GenerateRequest, on_output: OnOutput) -> None:
        """Check and queue `request`; raises RequestError when it cannot be served."""
        request = self.core.limits.check(request)
        answer = _Answer(request, on_output)
        self._answers[request.request_id] = answer
        self._times[request.request_id] = answer.times
        self._post(lambda: self._add(request))

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        self._post(partial(self._abort, request_id))

    def note_times(self, request_id: str) -> None:
        """Complete the times of a live request up to now."""
        answer, request = self._answers.get(request_id), self.core.scheduler.find(request_id)
        if answer is not None and request is not None:
            self._note(answer, request.num_generated)

    def stats(self) -> EngineStats:
        """Return gauges and counters as of now."""
        core, live, counters = self.core, len(self._answers), self._counters
        running = min(core.scheduler.num_running, live)
        host_s = counters.steps * self._host.step_s + counters.generated_tokens * self._host.row_s
        return replace(
            core.add_counters(counters),
            busy_s=self.busy_s - host_s,
            running_requests=running,
            queued_requests=live - running,
            kv_capacity_tokens=core.pool.num_tokens,
            kv_used_tokens=core.used_tokens,
            kv_cached_tokens=core.evictable_tokens,
        )

    def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        """Return at once: nothing runs outside the clock."""

    def _post(self, task: Callable[[], None]) -> None:
        self._inbox.append(task)
        if not self._running:
            self._running = True
            # Whatever comes at the same moment takes part in the same step.
            self._clock.after(0.0, self._begin)

    def _add(self, request: GenerateRequest) -> None:
        if request.request_id in self._answers:
            self.core.scheduler.add(request)

    def _abort(self, request_id: str) -> None:
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            self.core.scheduler.remove(request_id)
            self._counters.requests_aborted += 1
            answer.on_output(self._message(answer, (), 0, Finish("abort")))

    def _begin(self) -> None:
        while self._inbox:
            tasks, self._inbox = self._inbox, []
            for task in tasks:
                task()
        scheduler = self.core.scheduler
        steps = 0 if self._on_batch is not None else scheduler.sure_decodes()
        if steps:
            self._decode(steps)
            return
        batch = scheduler.schedule()
        if batch is None:
            self._running = False
            return
        if self._on_batch is not None:
            self._on_batch(batch)
        seconds = self._step_s(StepShape.of(batch, self.core.pool.page_size))
        self._take_time(seconds, lambda: self._end(batch))

    def _take_time(self, seconds: float, end: Callable[[], None]) -> None:
        self.peak_tokens = max(self.peak_tokens, self.core.used_tokens)
        self.busy_s += seconds
        self._clock.after(seconds, end)

    def _decode(self, most: int) -> None:
        """Decode for `most` steps, or less: up to the one in which something else happens."""
        shape, now, until_s = self._shape(), self._clock.now, self._clock.next_s
        seconds, passed = self._step_s(shape), 0
        while passed < most - 1 and now + seconds < until_s:
            now += seconds
            passed += 1
            self._steps.add(now)
            self.busy_s += seconds
            contexts = tuple([context + 1 for context in shape.decodes])
            shape = StepShape((), contexts, shape.logits, shape.drawn, shape.shared)
            seconds = self._step_s(shape)
        if passed:
            self._clock.jump(now)
        self.core.scheduler.decode_ahead(passed + 1)
        self._counters.steps += passed
        self._counters.generated_tokens += passed * shape.rows
        self._take_time(seconds, self._end_decode)

    def _shape(self) -> StepShape:
        """Return the shape of the next step, in which requests do nothing but decode."""
        decoding = self.core.scheduler.decoding
        contexts = tuple(decoding.contexts())
        # Who is not akin to anybody stays so while others leave.
        if self._may_be_akin:
            requests = list(decoding.values())
            shared = shared_pages([request.table.pages for request in requests])
            self._kinship = drawn([request.sampling for request in requests]), shared * self.core.pool.page_size
            self._first_pages = {request.table.pages[0] for request in requests}
            self._may_be_akin = self._kinship != (0, 0)
        return StepShape((), contexts, len(contexts), *self._kinship)

    def _meet(self, request: Request) -> None:
        """Note whether one who joins those that decode may be akin to them."""
        first_page = request.table.pages[0]
        if first_page in self._first_pages or drawn((request.sampling,)):
            self._may_be_akin = True
        self._first_pages.add(first_page)

    def _foretold(self, request: Request, count: int) -> "array[int]":
        """Return the next tokens of `request`."""
        return self._tokens.some(request.seed, request.num_generated, count)

    def _end_decode(self) -> None:
        scheduler = self.core.scheduler
        self._steps.add(self._clock.now)
        self._counters.steps += 1
        self._counters.generated_tokens += len(scheduler.decoding)
        for request in scheduler.end_decode():
            self._tell(self._answers[request.request_id], request)
        self._begin()

    def _end(self, batch: Batch) -> None:
        made_up, now = self._tokens.one, self._clock.now
        results = [made_up(row.seed, row.num_generated) if row.samples else None for row in batch.rows]
        self._counters.steps += 1
        if len(batch.rows) > batch.num_prefills:
            self._steps.add(now)
        advanced = self.core.scheduler.update(batch, results)
        self._counters.generated_tokens += len(advanced)
        for request in advanced:
            if request.decode_row is None:
                self._end_prompt(request)
            elif request.finish is not None:
                self._tell(self._answers[request.request_id], request)
        self._begin()

    def _end_prompt(self, request: Request) -> None:
        """Note the token that came with the end of a prompt, or of what was computed again after a retraction."""
        answer = self._answers[request.request_id]
        generated = request.num_generated
        self._note(answer, generated - 1)
        answer.times.add(self._clock.now)
        answer.decodes_from = len(self._steps)
        if request.finish is None:
            self._meet(request)
        if request.finish is not None or generated == 1:
            self._tell(answer, request)

    def _note(self, answer: _Answer, generated: int) -> None:
        start = answer.decodes_from
        answer.decodes_from += generated - answer.times.count
        answer.times.add_steps(self._steps, start, answer.decodes_from)

    def _tell(self, answer: _Answer, request: Request) -> None:
        generated = request.num_generated
        self._note(answer, generated)
        new = 1 if request.finish is None or generated == 1 else generated - 1
        if request.finish is not None:
            del self._answers[request.request_id]
            self._counters.requests_finished += 1
        answer.on_output(self._message(answer, request.tokens[-new:], generated, request.finish, request))

    def _message(
        self,
        answer: _Answer,
        tokens: Sequence[int],
        generated: int,
        finish: Finish | None,
        request: Request | None = None,
    ) -> Output:
        return Output(
            request_id=answer.request.request_id,
            token_ids=tokens,
            text="",
            prompt_tokens=len(answer.request.prompt_ids),
            completion_tokens=generated,
            cached_tokens=0 if request is None else request.cached_tokens,
            finish=finish,
            replica=self.name,
        )
