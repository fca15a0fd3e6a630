"""The requests that decode: all of them get a token in each step that decodes, so one count moves them all on."""

from array import array
from collections.abc import Callable, Iterable
from operator import itemgetter

from sglk.engine.messages import FULL
from sglk.engine.request import Request

Foretold = Callable[[Request, int], "array[int]"]
"""Returns the next tokens of a request, so many."""


class Decoding(dict[str, Request]):
    """Requests by id, in the order in which they began to decode."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        """Those so far in which requests decoded."""
        self.foretold: Foretold | None = None
        """For a simulation, which makes answers up: requests then need their tokens only when somebody looks for them.
        """
        self._ends: dict[int, dict[str, Request]] = {}
        """By the step with which they end at the latest (0: a token may end them before): no step looks at all."""

    def join(self, request: Request) -> None:
        """Take in a request whose last prompt tokens are being computed."""
        request.origin = len(request.tokens) - self.steps
        self[request.request_id] = request

    def begin(self, request: Request, steps: int) -> None:
        """Let one that has joined get a token in each step from now on, after `steps` of them."""
        request.decode_from(steps)
        self._ends.setdefault(request.sure_until, {})[request.request_id] = request

    def leave(self, request: Request) -> None:
        """Let go of a request; harmless for one that is not here."""
        if self.pop(request.request_id, None) is None:
            return
        together = self._ends.get(request.sure_until, {})
        together.pop(request.request_id, None)
        if not together:
            self._ends.pop(request.sure_until, None)

    def catch_up(self, requests: Iterable[Request]) -> None:
        """Give these of them the tokens of steps that were passed over."""
        if self.foretold is None:
            return
        for request in requests:
            missing = request.origin + self.steps - len(request.tokens)
            if missing > 0:
                request.tokens += self.foretold(request, missing)
                request.computed += missing
                request.decode_row = None

    def contexts(self) -> list[int]:
        """Return how many tokens each has."""
        steps = self.steps
        return [request.origin + steps for request in self.values()]

    def left(self) -> list[int]:
        """Return how many tokens each may still add."""
        steps = self.steps
        return [request.most_tokens - request.origin - steps for request in self.values()]

    def sure_steps(self) -> int:
        """Return in how many steps from now one may end for the first time; 0 where that depends on its tokens."""
        return max(0, min(self._ends, default=0) - self.steps)

    def end_step(self) -> list[Request]:
        """Count one step, and return those that have their last token with it."""
        self.steps += 1
        ended = list(self._ends.get(self.steps, {}).values())
        for request in ended:
            request.finish = FULL
        return ended

    def growing(self, steps: int, page_size: int) -> list[Request]:
        """Return which take a page in the next `steps` steps, from step to step."""
        end = self.steps + steps
        growing = [request for request in self.values() if request.grows_at < end]
        if steps == 1:
            return growing
        found = [(step, request) for request in growing for step in range(request.grows_at, end, page_size)]
        return [request for _, request in sorted(found, key=itemgetter(0))]
