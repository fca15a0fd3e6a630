"""A request that is passed on as it came, and the pieces of its answer: what goes through the router to a proxy."""

import asyncio
from dataclasses import dataclass, field

from sglk.engine.messages import GenerateRequest, Output

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ProxyRequest(GenerateRequest):
    """One HTTP request; `prompt_ids` are the bytes of its prompt, by which a router knows beginnings it has seen."""

    method: str = "POST"
    path: str = ""
    """With its query."""
    headers: Headers = ()
    body: bytes = b""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """Where the answer is relayed."""


@dataclass(slots=True)
class ProxyOutput(Output):
    """A piece of the answer, byte for byte as the engine sent it.

    `completion_tokens` are what the engine says it has generated, and until it says so the pieces of its stream.
    """

    data: bytes = b""
    status: int = 200
    headers: Headers = ()
