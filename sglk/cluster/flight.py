"""One request on its way through the router, and its attempts on replicas."""

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Optional

from sglk.cluster.group import Replica
from sglk.cluster.recent import End
from sglk.engine.messages import Finish, GenerateRequest, Output

LOST = "group_lost"
"""Code of a request that was lost with what computed it, through no fault of its own: to send it again is right."""


@dataclass(eq=False, slots=True)
class Flight:
    """A request that has not ended."""

    request: GenerateRequest
    on_output: Callable[[Output], None]
    received_s: float
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while an output is passed on, so that nothing follows the last one."""
    attempt: Optional["Attempt"] = None
    """The one whose outputs count; None before the first and after the last."""
    first_s: float | None = None
    last_s: float = 0.0
    tokens: int = 0
    moved: bool = False
    """Whether it has been sent to another group already."""
    aborted: bool = False
    avoid: set[Replica] = field(default_factory=set)
    """Replicas that are not to be tried again."""
    context: Context = field(default_factory=copy_context)
    """What the submitter's log lines say of themselves; those of other threads about this request shall say it too."""

    @property
    def started(self) -> bool:
        """Whether the client has got a token; then no other replica may answer."""
        return self.first_s is not None

    @property
    def movable(self) -> bool:
        """Whether another replica can take it without the client's noticing."""
        return not (self.started or self.moved or self.aborted)

    def note(self, output: Output, now_s: float) -> None:
        """Keep the times of an output."""
        if output.token_ids:
            self.first_s = now_s if self.first_s is None else self.first_s
            self.last_s = now_s
            self.tokens = output.completion_tokens

    def end(self, now_s: float, *, failed: bool) -> End:
        """Return how it ended, with the latencies that the client saw."""
        first, last = self.first_s, self.last_s
        if failed or first is None:
            return End(now_s, failed)
        tpot_s = (last - first) / (self.tokens - 1) if self.tokens > 1 else None
        return End(now_s, failed, first - self.received_s, tpot_s, last - self.received_s)

    def failure(self, message: str) -> Output:
        """Return the last message of a request that a replica failed and that nobody else can take."""
        return self._last(Finish("error", message=message))

    def loss(self, message: str) -> Output:
        """Return the last message of a request that is lost with its replica."""
        return self._last(Finish("error", message=f"{message}; send the request again", code=LOST))

    def _last(self, finish: Finish) -> Output:
        return Output(self.request.request_id, (), "", len(self.request.prompt_ids), self.tokens, 0, finish)


@dataclass(eq=False, slots=True)
class Attempt:
    """A request at one replica."""

    flight: Flight
    replica: Replica
    probe: bool
    """Whether the replica's breaker let it in to see how it goes."""
