"""Clients on a virtual clock: `sglk.bench.drive` without a wire, with the same times and the same figures."""

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from sglk.bench.arrivals import arrival_times, numbered, session_of
from sglk.bench.record import RequestRecord, Status
from sglk.bench.workload import Conversation, Turn
from sglk.config.bench_schema import LoadConfig, WorkloadConfig
from sglk.engine.messages import GenerateRequest, Output, SamplingParams
from sglk.errors import RequestError
from sglk.simulation.deployment import VirtualDeployment, Way
from sglk.simulation.times import TokenTimes, rounded
from sglk.simulation.words import end_ids, message_ids


def _no_ids() -> "array[int]":
    return array("I")


@dataclass(slots=True)
class _Talk:
    """A conversation on its way."""

    index: int
    """Of its first request."""
    turns: tuple[Turn, ...]
    shared_tokens: int
    ids: "array[int]" = field(default_factory=_no_ids)
    """Prompts and answers so far."""
    place: int = 0
    """Turn that is asked now."""

    @property
    def turn(self) -> Turn:
        return self.turns[self.place]


@dataclass(slots=True)
class _Call:
    """One request that waits for its answer."""

    talk: _Talk
    request_id: str
    due_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: "array[int]" = field(default_factory=_no_ids)


class Clients:
    """Sends every request of a workload to a deployment."""

    def __init__(
        self, deployment: VirtualDeployment, way: Way, workload: WorkloadConfig, vocab_size: int, load: LoadConfig
    ) -> None:
        self.records: list[RequestRecord] = []
        """Of the requests that have ended."""
        self.replicas: dict[int, str] = {}
        """Replica that answered each request, by index."""
        self._deployment = deployment
        self._way = way
        self._entry_free_s = 0.0
        """When the last request that was sent has passed the server's entry."""
        self._clock = deployment.clock
        self._workload = workload
        self._vocab_size = vocab_size
        self._timeout_s = load.timeout_s
        self._sessions = load.sessions
        self._open: dict[str, _Call] = {}
        self._next: Callable[[], None] = _nothing
        """What follows the end of a conversation."""

    def run(self, conversations: Sequence[Conversation]) -> list[RequestRecord]:
        """Go through the whole workload; return the records in the order of the requests."""
        if self._workload.arrival == "closed":
            self._closed_loop(numbered(conversations), min(self._workload.concurrency, len(conversations)))
        else:
            self._open_loop(numbered(conversations), arrival_times(self._workload, conversations))
        self._clock.run()
        assert not self._open
        # It knows the workload and these clients, which would live on together.
        self._next = _nothing
        return sorted(self.records, key=lambda record: record.index)

    def _closed_loop(self, conversations: Iterator[tuple[int, Conversation]], concurrency: int) -> None:
        def begin() -> None:
            index, conversation = next(conversations, (0, None))
            if conversation is not None:
                self._begin(index, conversation, self._clock.now)

        self._next = begin
        for _ in range(concurrency):
            begin()

    def _open_loop(self, conversations: Iterator[tuple[int, Conversation]], times_s: Sequence[float]) -> None:
        limit = self._workload.concurrency or len(times_s)
        waiting: deque[tuple[int, Conversation, float]] = deque()
        free = limit

        def arrive(index: int, conversation: Conversation) -> None:
            nonlocal free
            if free:
                free -= 1
                self._begin(index, conversation, self._clock.now)
            else:
                waiting.append((index, conversation, self._clock.now))

        def leave() -> None:
            nonlocal free
            if waiting:
                self._begin(*waiting.popleft())
            else:
                free += 1

        self._next = leave
        for (index, conversation), at_s in zip(conversations, times_s, strict=True):
            self._clock.at(at_s, partial(arrive, index, conversation))

    def _begin(self, index: int, conversation: Conversation, due_s: float) -> None:
        self._ask(_Talk(index, conversation.turns, conversation.shared_tokens), due_s)

    def _ask(self, talk: _Talk, due_s: float) -> None:
        prompt = talk.turn.prompt
        # The engine has those of the turn before, so these are others.
        talk.ids = talk.ids + (prompt.token_ids or array("I", message_ids(prompt.messages, self._vocab_size)))
        call = _Call(talk, str(talk.index + talk.place), due_s)
        self._open[call.request_id] = call
        passing_s = self._way.arrival_s + len(talk.ids) * self._way.arrival_token_s
        self._entry_free_s = max(self._clock.now, self._entry_free_s) + passing_s
        self._clock.at(self._entry_free_s, lambda: self._submit(call))
        self._clock.after(self._timeout_s, lambda: self._give_up(call))

    def _submit(self, call: _Call) -> None:
        turn = call.talk.turn
        sampling = SamplingParams(
            max_new_tokens=turn.output_len, temperature=0.0, ignore_eos=True, seed=int(call.request_id)
        )
        session = session_of("measured", call.talk.index) if self._sessions else None
        request = GenerateRequest(call.request_id, call.talk.ids, sampling, session=session)
        try:
            self._deployment.router.submit(request, partial(self._receive, call))
        except RequestError as error:
            self._end(call, "failed", self._clock.now, TokenTimes(), f"HTTP {error.status}: {error}")

    def _receive(self, call: _Call, output: Output) -> None:
        call.prompt_tokens, call.cached_tokens = output.prompt_tokens, output.cached_tokens
        call.tokens.extend(output.token_ids)
        if output.finish is None or call.request_id not in self._open:
            return
        self.replicas[call.talk.index + call.talk.place] = output.replica
        times, delivery_s = self._deployment.times.pop(call.request_id), self._way.delivery_s
        times.first_s += delivery_s
        times.last_s += delivery_s
        self._clock.at(times.last_s, lambda: self._end(call, "ok", times.last_s, times))

    def _give_up(self, call: _Call) -> None:
        if self._open.get(call.request_id) is not call:
            return
        times = self._deployment.take_times(call.request_id)
        error = f"no complete answer within {self._timeout_s:g} s"
        self._end(call, "timeout", self._clock.now, times, error)
        self._deployment.router.abort(call.request_id)

    def _end(self, call: _Call, status: Status, ended_s: float, times: TokenTimes, error: str | None = None) -> None:
        if self._open.pop(call.request_id, None) is None:
            return
        talk, turn = call.talk, call.talk.turn
        self.records.append(
            RequestRecord(
                index=talk.index + talk.place,
                phase="measured",
                status=status,
                sent_s=rounded(call.due_s),
                ttft_s=rounded(times.first_s - call.due_s) if times.count else None,
                e2e_s=rounded(ended_s - call.due_s),
                prompt_tokens=call.prompt_tokens or len(talk.ids),
                completion_tokens=len(call.tokens) if status == "ok" else times.count,
                cached_tokens=call.cached_tokens,
                shared_tokens=talk.shared_tokens,
                itl_s=times.gaps_s,
                finish_reason="length" if status == "ok" else None,
                error=error,
                asked_tokens=turn.output_len,
            )
        )
        if status == "ok":
            self._go_on(call)
        else:
            self._skip_rest(talk)
            self._next()

    def _go_on(self, call: _Call) -> None:
        talk = call.talk
        talk.place += 1
        if talk.place == len(talk.turns):
            self._next()
            return
        talk.shared_tokens = len(talk.ids) + len(call.tokens)
        talk.ids = talk.ids + call.tokens + array("I", end_ids(self._vocab_size))
        self._ask(talk, self._clock.now)

    def _skip_rest(self, talk: _Talk) -> None:
        """Count the turns after a failed one as failed: without its answer they cannot be asked."""
        for place in range(talk.place + 1, len(talk.turns)):
            error = f"not sent: turn {talk.place + 1} of the conversation failed"
            self.records.append(RequestRecord(talk.index + place, "measured", "failed", error=error))


def _nothing() -> None:
    pass
