"""A circuit breaker: takes out what keeps failing, and lets it back by single probes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When to open, and for how long."""

    failures: int = 3
    """Failures in a row that open it."""
    cool_down_s: float = 5.0
    """How long it stays open the first time; doubles with each failed probe."""
    longest_s: float = 60.0
    """Limit of that."""
    doubts: int = 20
    """Failures that each request may itself be to blame for, without a good answer between, that open it as well."""


class Breaker:
    """The breaker of one replica. Not thread-safe: the router's lock guards it.

    Only failures of the server's own count, and only its answers count as success: what the client is to blame for,
    and requests that it gave up, neither open nor close it, nor reset the count.
    """

    def __init__(self, settings: BreakerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._failures = 0
        self._doubts = 0
        self._open_until_s: float | None = None
        self._cool_down_s = settings.cool_down_s
        self._probing = False
        self.last_error: str | None = None
        """What failed last, whether or not it opened the breaker."""
        self.opened = 0
        """How often it has opened."""
        self.failed_probes = 0
        """Probes that have failed since the last good answer."""
        self._sick_since_s: float | None = None

    @property
    def state(self) -> BreakerState:
        """`closed` lets all pass, `open` none, `half_open` one at a time."""
        if self._open_until_s is None:
            return "closed"
        return "half_open" if self._clock() >= self._open_until_s else "open"

    @property
    def admits(self) -> bool:
        """Whether a request may pass now."""
        return self._open_until_s is None or (self.state == "half_open" and not self._probing)

    @property
    def sick_s(self) -> float:
        """For how many seconds it has been open without a good answer; 0 after one, and after a restart."""
        return 0.0 if self._sick_since_s is None else self._clock() - self._sick_since_s

    def enter(self) -> bool:
        """Let a request pass; returns whether it is a probe, whose end must then be told as one.

        While nothing else is left a request may pass an open breaker too: it is a probe before its time.
        """
        if self._open_until_s is None:
            return False
        self._probing = True
        return True

    def succeed(self, probe: bool) -> None:
        """Note a good answer; that of a probe closes the breaker."""
        self._recover()
        if probe:
            self.close()
        elif self._open_until_s is None:
            self._failures = 0

    def fail(self, error: str, probe: bool) -> None:
        """Note a failure; requests that had entered before the breaker opened change nothing any more."""
        self.last_error = error
        if probe:
            self.failed_probes += 1
            self._reopen()
        elif self._open_until_s is None:
            self._failures += 1
            if self._failures >= self._settings.failures:
                self._open()

    def doubt(self, error: str, probe: bool) -> None:
        """Note a failure that the request may be to blame for.

        Many in a row open it, as where one route never works; none asks for a restart, which would help no bad request.
        """
        if self._open_until_s is not None and not probe:
            return
        self.last_error = error
        self._doubts += 1
        if self._doubts < max(self._settings.doubts, self._settings.failures):
            self.leave(probe)
        elif probe:
            self._reopen()
        else:
            self._open()

    def leave(self, probe: bool) -> None:
        """Note an end that says nothing about the replica; after a probe the next request is one."""
        if probe:
            self._probing = False

    def trip(self, error: str) -> None:
        """Open at once."""
        self.last_error = error
        self._open()

    def close(self) -> None:
        """Let all pass again."""
        self._recover()
        self._failures = 0
        self._open_until_s = None
        self._probing = False
        self._cool_down_s = self._settings.cool_down_s

    def probe_next(self) -> None:
        """Let the next request pass as a probe, as after a restart."""
        self._recover()
        self._failures = 0
        self._probing = False
        self._open_until_s = self._clock()

    def _recover(self) -> None:
        self._doubts = 0
        self.failed_probes = 0
        self._sick_since_s = None

    def _reopen(self) -> None:
        self._cool_down_s = min(2 * self._cool_down_s, self._settings.longest_s)
        self._open()

    def _open(self) -> None:
        self.opened += 1
        if self._sick_since_s is None:
            self._sick_since_s = self._clock()
        self._probing = False
        self._failures = 0
        self._open_until_s = self._clock() + self._cool_down_s
