"""Schedule policies: in which order waiting requests are admitted.

`lpm` and `shortest_prompt_first` let requests overtake. A request that has seen MAX_PASSES admission passes (those in
which at least one request left the queue) goes first, in order of arrival, and so does one that was retracted. While
the first in order does not fit, nobody is admitted. So any request starts within MAX_PASSES admission passes, and one
more for each request that arrived before it or was retracted. Passes do not count in which the prompt whose beginning
it shares is still being computed (see Scheduler); each request before it can make it wait so once.
"""

from collections.abc import Callable, Collection, Iterable

from sglk.cache.radix import RadixCache
from sglk.engine.request import Request
from sglk.errors import ConfigError, nearest

MAX_PASSES = 32
"""Admission passes during which a waiting request may be overtaken."""

MAX_LPM_WAITING = 128
"""Above this queue length `lpm` becomes `fcfs`: looking up every prompt would cost more than it saves."""

Policy = Callable[[Collection[Request], RadixCache, int], Iterable[Request]]
"""Orders the waiting requests (given in order of arrival); also gets the prefix cache and the admission pass."""


def fcfs(waiting: Collection[Request], cache: RadixCache, now: int) -> Iterable[Request]:
    """First come, first served."""
    return list(waiting)


def lpm(waiting: Collection[Request], cache: RadixCache, now: int) -> Iterable[Request]:
    """Longest prefix match: requests that find most of their prompt in the cache come first."""
    if len(waiting) > MAX_LPM_WAITING or not cache.enabled:
        return fcfs(waiting, cache, now)
    return _ordered(waiting, now, lambda request: -_cached_length(request, cache))


def shortest_prompt_first(waiting: Collection[Request], cache: RadixCache, now: int) -> Iterable[Request]:
    """Short prompts first, so that many small requests do not wait behind a large one."""
    return _ordered(waiting, now, lambda request: len(request.tokens))


POLICIES: dict[str, Policy] = {"fcfs": fcfs, "lpm": lpm, "shortest_prompt_first": shortest_prompt_first}


def find_policy(name: str) -> Policy:
    """Return the policy called `name`; raises ConfigError with the known ones."""
    if name not in POLICIES:
        raise ConfigError(f"runtime.schedule_policy={name!r} is not one of {sorted(POLICIES)}{nearest(name, POLICIES)}")
    return POLICIES[name]


def _ordered(waiting: Collection[Request], now: int, key: Callable[[Request], int]) -> list[Request]:
    overdue: list[Request] = []
    others: list[Request] = []
    for request in waiting:
        late = request.admissions > 0 or now - request.queued_at >= MAX_PASSES
        (overdue if late else others).append(request)
    return overdue + sorted(others, key=key)


def _cached_length(request: Request, cache: RadixCache) -> int:
    version, length = request.peeked
    if version != cache.version:
        length = cache.peek(request.beginning(len(request.prompt_ids) - 1))
        request.peeked = (cache.version, length)
    return length
