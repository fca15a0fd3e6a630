"""One request on its way through the router, and its attempts on replicas."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

from sglk.cluster.group import Replica
from sglk.engine.messages import Finish, GenerateRequest, Output


@dataclass(eq=False, slots=True)
class Flight:
    """A request that has not ended."""

    request: GenerateRequest
    on_output: Callable[[Output], None]
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while an output is passed on, so that nothing follows the last one."""
    attempt: Optional["Attempt"] = None
    """The one whose outputs count; None before the first and after the last."""
    started: bool = False
    """Whether the client has got a token; then no other replica may answer."""
    moved: bool = False
    """Whether it has been sent to another group already."""
    aborted: bool = False
    avoid: set[Replica] = field(default_factory=set)
    """Replicas that are not to be tried again."""

    def failure(self, message: str) -> Output:
        """Return the last message of a request that comes to nothing."""
        prompt_tokens = len(self.request.prompt_ids)
        return Output(self.request.request_id, (), "", prompt_tokens, 0, 0, Finish("error", message=message))


@dataclass(eq=False, slots=True)
class Attempt:
    """A request at one replica."""

    flight: Flight
    replica: Replica
    probe: bool
    """Whether the replica's breaker let it in to see how it goes."""
