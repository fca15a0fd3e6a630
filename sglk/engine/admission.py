"""How much KV the running requests are expected to need, which decides whether one more is admitted."""

from collections.abc import Iterable

from sglk.engine.request import Request

START = 0.7
FLOOR = 0.14
DECAY_STEPS = 600
MAX_NEW_TOKENS = 4096
"""A larger (or missing) limit counts as this much, since few answers use it up."""
RETRACTION_STEPS = 20
"""After a retraction the estimate allows for this many decode steps without another one."""


class NewTokenRatio:
    """Share of its remaining `max_new_tokens` that a request is expected to use.

    As in SGLang: starts at 0.7 times the conservativeness, falls linearly over 600 decode steps to 14 % of that, is
    set from what the running requests did after each retraction, and starts anew when the engine falls idle.
    """

    def __init__(self, conservativeness: float) -> None:
        self._start = min(START * conservativeness, 1.0)
        self._floor = self._start * FLOOR
        self.value = self._start

    def reset(self) -> None:
        """Return to the first value."""
        self.value = self._start

    def decay(self, steps: int = 1) -> None:
        """Count decode steps."""
        for _ in range(steps):
            self.value = max(self._floor, self.value - (self._start - self._floor) / DECAY_STEPS)

    def retracted(self, running: Iterable[Request]) -> None:
        """Take what the `running` requests have generated for the new estimate, a little above."""
        generated = limit = 0
        for request in running:
            generated += request.num_generated + RETRACTION_STEPS
            limit += min(request.max_new_tokens, MAX_NEW_TOKENS)
        self.value = max(self.value, min(1.0, generated / max(1, limit)))

    def growth(self, left: Iterable[int]) -> float:
        """Return the KV tokens that requests are expected to add to those they have, of those `left` to each."""
        tokens, value = 0.0, self.value
        for most in left:
            tokens += (most if most < MAX_NEW_TOKENS else MAX_NEW_TOKENS) * value
        return tokens
