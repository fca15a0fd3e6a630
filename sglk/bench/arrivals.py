"""When the conversations of a workload start. Needs no network."""

import math
from collections.abc import Iterator, Sequence

from sglk.bench.prompts import Draw
from sglk.bench.record import Phase
from sglk.bench.workload import Conversation
from sglk.config.bench_schema import WorkloadConfig

Numbered = tuple[int, Conversation]
"""A conversation and the index of its first request."""


def numbered(conversations: Sequence[Conversation]) -> Iterator[Numbered]:
    """Yield each conversation with the index of its first request."""
    index = 0
    for conversation in conversations:
        yield index, conversation
        index += len(conversation.turns)


def session_of(phase: Phase, index: int) -> str:
    """Return what the conversation whose first request is number `index` calls itself, in every run alike."""
    return f"{phase}-{index}"


def arrival_times(workload: WorkloadConfig, conversations: Sequence[Conversation]) -> list[float]:
    """Return when each conversation of an open loop starts, seconds after the phase does.

    Of a trace as it says, `time_scale` times as slowly. Else the gaps are exponential; `rate` counts requests, so
    conversations of several turns start as much more rarely.
    """
    if workload.arrival == "trace":
        return [conversation.at_s * workload.time_scale for conversation in conversations]
    assert workload.rate is not None
    draw, at, times = Draw(workload.seed, "arrivals"), 0.0, []
    for conversation in conversations:
        times.append(at)
        at -= math.log(1.0 - draw.unit()) * len(conversation.turns) / workload.rate
    return times
