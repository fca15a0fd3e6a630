"""One request on its way through the router, and its attempts on replicas."""

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
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
    moved_from: str = ""
    """Name of the replica that failed or refused it last, if another one has it now."""
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

    def failure(self, message: str, replica: str) -> Output:
        """Return the last message of a request that `replica` failed and that nobody else can take."""
        return self._last(Finish("error", message=message), replica)

    def loss(self, message: str, replica: str) -> Output:
        """Return the last message of a request that is lost with `replica`."""
        return self._last(Finish("error", message=f"{message}; send the request again", code=LOST), replica)

    def _last(self, finish: Finish, replica: str) -> Output:
        counts = (len(self.request.prompt_ids), self.tokens, 0)
        return Output(self.request.request_id, (), "", *counts, finish, replica=replica, moved_from=self.moved_from)


@dataclass(eq=False, slots=True)
class Attempt:
    """A request at one replica."""

    flight: Flight
    replica: Replica
    probe: bool
    """Whether the replica's breaker let it in to see how it goes."""
    late_s: float = 0.0
    """Seconds since the receipt of the request that went by at other replicas."""

    def told(self, output: Output) -> Output:
        """Return what the replica says, with what went before at others."""
        if not self.flight.moved_from:
            return output
        queue_s = None if output.queue_s is None else output.queue_s + self.late_s
        return replace(output, queue_s=queue_s, moved_from=self.flight.moved_from)
