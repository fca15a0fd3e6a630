"""How a group spreads its requests over its replicas."""

from collections.abc import Callable, Sequence

from sglk.cluster.group import Replica
from sglk.cluster.prefixes import block_keys
from sglk.engine.messages import GenerateRequest

OVERLOAD = 4
"""`prefix_aware` leaves the replica that knows the prefix when it has so many requests more than the idlest one, ..."""

OVERLOAD_RATIO = 1.5
"""... and so many times as many."""

Balance = Callable[[GenerateRequest, Sequence[Replica]], Replica]
"""Chooses among replicas that are ready, at least one."""


def least_loaded(request: GenerateRequest, ready: Sequence[Replica]) -> Replica:
    """Return the replica with the fewest open requests; of several, the one picked least often."""
    return ready[0] if len(ready) == 1 else min(ready, key=lambda each: (each.open_requests, each.counters.picks))


def round_robin(request: GenerateRequest, ready: Sequence[Replica]) -> Replica:
    """Return the replica that waits longest for its turn."""
    return min(ready, key=lambda replica: replica.last_pick)


def prefix_aware(request: GenerateRequest, ready: Sequence[Replica]) -> Replica:
    """Return the replica that has seen most of the prompt's beginning, unless it is overloaded: then the idlest."""
    if len(ready) == 1:
        return ready[0]
    keys = block_keys(request.prompt_ids)
    idlest = least_loaded(request, ready)
    knowing = max(ready, key=lambda replica: (replica.seen.matched(keys), -replica.open_requests))
    chosen = idlest if not knowing.seen.matched(keys) or _overloaded(knowing, idlest) else knowing
    chosen.seen.add(keys)
    return chosen


def _overloaded(replica: Replica, idlest: Replica) -> bool:
    more = replica.open_requests - idlest.open_requests
    return more >= OVERLOAD and replica.open_requests > OVERLOAD_RATIO * idlest.open_requests


BALANCES: dict[str, Balance] = {
    "least_loaded": least_loaded,
    "round_robin": round_robin,
    "prefix_aware": prefix_aware,
}
