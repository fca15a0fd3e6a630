"""The serving engine: one thread schedules, runs and answers; everybody else talks to it by messages."""

import concurrent.futures
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TypeVar

from sglk.config.environment import prepare_environment
from sglk.config.schema import RuntimeConfig, ServeConfig
from sglk.engine.answer import Answer
from sglk.engine.batch import Batch, RowFailure, Runner, RunnerLost
from sglk.engine.core import Core
from sglk.engine.failure import describe
from sglk.engine.fixed_keys import check_fixed
from sglk.engine.grammar import Grammars
from sglk.engine.guide import Guide
from sglk.engine.inbox import Inbox
from sglk.engine.isolation import run_rows
from sglk.engine.limits import Limits
from sglk.engine.messages import EngineStats, Finish, GenerateRequest, Grammar, Output
from sglk.engine.open_answers import OpenAnswers
from sglk.engine.own_process import OwnProcess
from sglk.engine.patience import Patience
from sglk.engine.request import Request
from sglk.engine.runner_facts import RunnerFacts
from sglk.engine.stats import Throughput
from sglk.errors import CapacityError, ConfigError, RequestError
from sglk.models.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

T = TypeVar("T")

JOIN_TIMEOUT_S = 30.0
"""How long a shutdown waits for the step that is being computed."""

CALL_TIMEOUT_S = 30.0
"""How long others wait for the end of a step before the engine does what they ask for."""


class Engine(RunnerFacts):
    """Generates text for many requests at once.

    All methods may be called from any thread; `on_output` callbacks run on the engine's thread and must be quick.
    Every request that `submit` accepts gets exactly one message with `finish`, whatever happens.

    A request that the runner fails ends with `error`; the others of its step go on. After steps in a row in which the
    device fails every request (for want of memory does not count) and a plain prompt too, or any other failure, the
    engine is dead: `is_alive` is False and `failure` says why.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        runtime: RuntimeConfig,
        *,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allocate the KV pool; raises CapacityError or ConfigError. Outputs carry `name`."""
        self.name = name
        self.tokenizer = tokenizer
        self.failure: str | None = None
        """Why the engine died; None while it lives, and after an orderly shutdown."""
        super().__init__(runner)
        self._clock = clock
        self._throughput = Throughput()
        self._counters = EngineStats()
        self._patience = Patience()
        self._step_began_s: float | None = None
        self._answers = OpenAnswers()
        self._stopped = False
        self._process = OwnProcess()
        self._unsent: deque[Request] = deque()
        """Requests whose last token has not been told to their callers: there is time for it while the device works."""
        self._inbox = Inbox()
        self._thread = threading.Thread(target=self._serve, name="sglk-engine", daemon=True)
        end_token_ids = runner.eos_token_ids | tokenizer.eos_token_ids
        self._eos_token_ids = frozenset(token for token in end_token_ids if token < runner.vocab_size)
        self._grammars = Grammars(tokenizer, runner.vocab_size, self._eos_token_ids)
        self._core = self._build(runtime)

    @classmethod
    def from_config(cls, config: ServeConfig, name: str = "") -> "Engine":
        """Load backend and model of `config` and build an engine for its first device; call `start` next."""
        return cls.builders([config])[0](name)

    @classmethod
    def builders(cls, configs: Sequence[ServeConfig]) -> list[Callable[[str], "Engine"]]:
        """Return what loads and builds the engine of each of `configs`, given its name.

        Raises any SglkError for what can be refused before the first weight is read.
        """
        for config in configs:
            prepare_environment(config.backend)
        # By name: what only talks to an engine, or brings its own runner, must not need torch.
        loading = import_module("sglk.engine.loading")
        prepared = zip(configs, loading.prepare(configs), strict=True)
        return [partial(cls._build_for, config.runtime, each.load) for config, each in prepared]

    @classmethod
    def _build_for(cls, runtime: RuntimeConfig, load: Callable[[], tuple[Runner, Tokenizer]], name: str) -> "Engine":
        runner, tokenizer = load()
        try:
            return cls(runner, tokenizer, runtime, name=name)
        except BaseException:
            runner.close()
            raise

    @property
    def runtime(self) -> RuntimeConfig:
        """The runtime parameters in force."""
        return self._core.runtime

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._core.limits.context_length

    @property
    def is_alive(self) -> bool:
        """Whether the engine takes and serves requests."""
        return self._thread.is_alive() and self.failure is None

    @property
    def stuck_s(self) -> float:
        """For how many seconds the step that is being computed has been running; 0 between two steps."""
        began = self._step_began_s
        return 0.0 if began is None or not self.is_alive else self._clock() - began

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()
        self._runner.watch(self._lose_runner)

    def prepare(self, grammar: Grammar) -> None:
        """Compile `grammar`, so that `submit` need not; raises RequestError for one that cannot be followed."""
        self._grammars.guide(grammar)

    def submit(self, request: GenerateRequest, on_output: Callable[[Output], None]) -> None:
        """Check and queue `request`; raises RequestError (400, or 503 when the engine is stopping or dead).

        A grammar is compiled in the calling thread, unless it was a short while ago.
        """
        self._process.require()
        limits = self._core.limits
        request = limits.check(request)
        grammar = request.sampling.grammar
        guide = None if grammar is None else self._grammars.guide(grammar)
        answer = Answer(request, on_output, self.tokenizer, self._clock(), self.name)

        def post() -> None:
            # A dead engine refuses the task; one that dies later cancels it.
            self._inbox.post(
                lambda: self._begin(answer, limits, guide),
                lambda reason: self._fail(answer, Finish("error", message=reason)),
            )

        self._answers.open(answer, post)

    def abort(self, request_id: str) -> None:
        """End a request before the next step, with finish reason `abort`; unknown ids are ignored."""
        with contextlib.suppress(RequestError):
            self._inbox.post(lambda: self._abort(request_id))

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while there are live requests."""
        return self._call(self._flush)

    def reconfigure(self, runtime: RuntimeConfig, *, force: bool = False) -> None:
        """Rebuild scheduler, prefix cache and KV pool for `runtime`; the weights stay where they are.

        Raises RequestError (409) while there are live requests, which `force` aborts; ConfigError for parameters that
        need another start; CapacityError when the new pool does not fit. After an error the old parameters hold.
        """
        check_fixed(self.runtime, runtime)
        self._call(lambda: self._reconfigure(runtime, force))

    def stats(self) -> EngineStats:
        """Return gauges and counters as of now."""
        core, live = self._core, len(self._answers)
        running = min(core.scheduler.num_running, live)
        return replace(
            core.add_counters(self._counters),
            running_requests=running,
            queued_requests=live - running,
            kv_capacity_tokens=core.pool.num_tokens,
            kv_used_tokens=core.used_tokens,
            kv_cached_tokens=core.evictable_tokens,
            generation_throughput=self._throughput.rate(self._clock()),
        )

    def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        """Refuse new requests, let live ones finish for `drain_timeout_s`, abort the rest and stop the thread.

        In a process that was forked off this does nothing: the engine is not its own.
        """
        if self._process.left:
            return
        if threading.current_thread() is self._thread:
            # Whoever drops the last reference shuts down, and garbage is collected on any thread.
            threading.Thread(target=self.shutdown, name="sglk-engine-shutdown").start()
            return
        self._answers.close()
        if self._thread.is_alive():
            self._answers.wait(drain_timeout_s)
        if not self._thread.is_alive():
            self._stop()
            self._inbox.close("the engine is shut down")
            self._runner.close()
            return
        with contextlib.suppress(RequestError):
            self._inbox.post(self._stop)
        self._thread.join(JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("the engine is still in its last step after %g s; left behind", JOIN_TIMEOUT_S)
            self._stopped = True
            self._inbox.close("the engine is shut down")
        self._runner.close()

    def _call(self, function: Callable[[], T]) -> T:
        """Run `function` on the engine's thread, between two steps, and return its result."""
        self._process.require()
        assert self._thread.ident is not None, "start() comes first"
        assert threading.current_thread() is not self._thread, "a callback cannot wait for its own engine"
        promise = self._inbox.call(function)
        try:
            return promise.result(CALL_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            if not promise.cancel():
                return promise.result()  # it has begun, or has just ended
        message = f"the engine has been in one step for {self.stuck_s:.0f} s; try again when it is over"
        raise RequestError(message, code="engine_busy", status=503)

    def _lose_runner(self, reason: str) -> None:
        """Let the engine's thread die of it, should it not find out by itself."""

        def die() -> None:
            raise RunnerLost(reason)

        with contextlib.suppress(RequestError):
            self._inbox.post(die)

    # The rest runs on the engine's thread.

    def _serve(self) -> None:
        try:
            while not self._stopped:
                self._inbox.work(wait=not self._core.scheduler.has_work)
                self._step()
            reason = "the engine is shut down"
        # Whatever it is, nobody may wait for a dead engine.
        except BaseException as error:
            logger.exception("the engine died")
            self.failure = reason = f"the engine died: {describe(error)}"
        self._inbox.close(reason)
        for answer in self._answers:
            self._fail(answer, Finish("error", message=reason))

    def _step(self) -> None:
        scheduler = self._core.scheduler
        batch = scheduler.schedule()
        if batch is None:
            self._tell()
            return
        self._counters.steps += 1
        self._note_first_steps(batch)
        self._step_began_s = self._clock()
        results = run_rows(self._runner, batch, self._tell_meanwhile)
        self._counters.busy_s += self._clock() - self._step_began_s
        self._step_began_s = None
        generated = sum(
            row.samples and not isinstance(result, RowFailure) for row, result in zip(batch.rows, results, strict=True)
        )
        self._counters.generated_tokens += generated
        self._throughput.add(self._clock(), generated)
        # Should the step have failed before there was time.
        self._tell()
        for request in scheduler.update(batch, results):
            if request.finish is None and not request.sampling.stop:
                self._unsent.append(request)
            else:
                # The next batch depends on whether it goes on.
                self._advance(request)
        self._patience.note(results, self._runner, self._core)

    def _note_first_steps(self, batch: Batch) -> None:
        now = self._clock()
        for row in batch.rows[: batch.num_prefills]:
            self._answer(row.request_id).begin(now)

    def _begin(self, answer: Answer, limits: Limits, guide: Guide | None) -> None:
        if answer not in self._answers:
            return
        try:
            # The engine may have been reconfigured since the request was checked.
            request = answer.request if limits is self._core.limits else self._core.limits.check(answer.request)
        except RequestError as error:
            self._fail(answer, Finish("error", message=str(error), code=error.code or "invalid_request"))
        else:
            self._core.scheduler.add(request, guide)

    def _tell_meanwhile(self) -> None:
        """Tell what the last step brought, which is no part of this one where the device waits for it."""
        self._tell()
        if not self._runner.asynchronous:
            self._step_began_s = self._clock()

    def _tell(self) -> None:
        while self._unsent:
            self._advance(self._unsent.popleft())

    def _advance(self, request: Request) -> None:
        answer = self._answer(request.request_id)
        if request.finish and request.finish.reason == "error":
            self._fail(answer, request.finish)
            return
        output = answer.advance(request)
        if output.finish is None:
            if not self._answers.send(answer, output):
                self._abort(request.request_id)
            return
        self._core.scheduler.remove(request.request_id)
        self._counters.requests_finished += 1
        self._answers.conclude(answer, output)

    def _abort(self, request_id: str) -> None:
        self._tell()
        answer = self._answers.get(request_id)
        if answer is not None:
            self._core.scheduler.remove(request_id)
            self._counters.requests_aborted += 1
            self._answers.conclude(answer, answer.close(Finish("abort")))

    def _fail(self, answer: Answer, finish: Finish) -> None:
        self._tell()
        if answer in self._answers:
            self._counters.requests_failed += 1
            self._answers.conclude(answer, answer.close(finish))

    def _answer(self, request_id: str) -> Answer:
        answer = self._answers.get(request_id)
        assert answer is not None, f"request {request_id!r} is in a step, but nobody waits for it"
        return answer

    def _flush(self) -> bool:
        if self._answers:
            return False
        self._core.cache.flush()
        return True

    def _reconfigure(self, runtime: RuntimeConfig, force: bool) -> None:
        if self._answers and not force:
            message = f"{len(self._answers)} requests are live; wait for them, or use force to abort them"
            raise RequestError(message, code="engine_busy", status=409)
        self._abort_all()
        old = self._core
        self._counters = old.add_counters(self._counters)
        try:
            self._core = self._build(runtime)
        except (CapacityError, ConfigError):
            self._core = self._build(old.runtime)
            raise

    def _build(self, runtime: RuntimeConfig) -> Core:
        return Core.build(self._runner, runtime, self._eos_token_ids)

    def _abort_all(self) -> None:
        for answer in self._answers:
            self._abort(answer.request.request_id)

    def _stop(self) -> None:
        self._abort_all()
        self._stopped = True
