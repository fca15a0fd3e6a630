"""The time of a simulated device: work takes as long as it is said to, and the host waits for it as for a real one."""

import time
from collections.abc import Callable


class DeviceClock:
    """A queue of work on one device, measured in the device's seconds.

    Work starts when it is handed over, or when what was handed over before is done. It runs beside the host, which
    waits for it only in `wait`: whatever Python does meanwhile costs nothing unless it takes longer than the device.
    """

    def __init__(
        self,
        speed: float = 1.0,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`speed` is how many of the device's seconds pass in one of the host's; 0 = nobody ever waits."""
        self.speed = speed
        self.busy_s = 0.0
        """Seconds of work handed over so far."""
        self._now = now
        self._sleep = sleep
        self._done_at = now()
        self._idle = True

    def charge(self, seconds: float) -> None:
        """Hand over work that takes `seconds` on the device."""
        self.busy_s += seconds
        if self.speed == 0:
            return
        if self._idle:
            self._idle = False
            self._done_at = max(self._done_at, self._now())
        self._done_at += seconds / self.speed

    def wait(self) -> None:
        """Return when all work is done."""
        self._idle = True
        left = self._done_at - self._now()
        if left > 0:
            self._sleep(left)
