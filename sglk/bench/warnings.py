"""What a reader of a record should know before believing its figures."""

import heapq
from collections.abc import Sequence

from sglk.bench.record import RequestRecord
from sglk.config.bench_schema import WorkloadConfig

UNASKED_HIT_LIMIT = 0.01
"""Share of prompt tokens that may come from the cache beyond what the workload shares on purpose."""


def warnings_for(
    requests: Sequence[RequestRecord], workload: WorkloadConfig, *, asked_cache: str, cache: str
) -> list[str]:
    """Return the warnings about a run; `asked_cache` is the policy in the configuration, `cache` the one in force."""
    measured = [request for request in requests if request.phase == "measured"]
    completed = [request for request in measured if request.ok]
    found = [_policy(asked_cache, cache), _hits(completed, cache), _short(completed), _estimates(completed)]
    found += [_held_back(measured, workload), _failures(measured)]
    return [warning for warning in found if warning is not None]


def unasked_share(requests: Sequence[RequestRecord]) -> float:
    """Return the share of prompt tokens that came from the prefix cache although nobody asked for it."""
    prompt = sum(request.prompt_tokens or 0 for request in requests)
    unasked = sum(max(0, (request.cached_tokens or 0) - request.shared_tokens) for request in requests)
    return unasked / prompt if prompt else 0.0


def _policy(asked: str, cache: str) -> str | None:
    if asked == cache:
        return None
    return "the server cannot flush its prefix cache; the prompts were salted instead"


def _hits(completed: Sequence[RequestRecord], cache: str) -> str | None:
    share = unasked_share(completed)
    if cache == "keep" or share <= UNASKED_HIT_LIMIT:
        return None
    return (
        f"{share:.1%} of the prompt tokens came from the prefix cache unasked: another run or client warmed it, "
        "and the figures look better than they are"
    )


def _short(completed: Sequence[RequestRecord]) -> str | None:
    short = [request for request in completed if request.short]
    if not short:
        return None
    worst = min(short, key=lambda request: (request.completion_tokens or 0) / (request.asked_tokens or 1))
    return (
        f"{len(short)} of {len(completed)} answers are shorter than asked, the shortest with "
        f"{worst.completion_tokens} of {worst.asked_tokens} tokens: the server ignores ignore_eos or cuts answers, "
        "and the figures are those of another workload"
    )


def _estimates(completed: Sequence[RequestRecord]) -> str | None:
    estimated = sum(request.estimated for request in completed)
    if not estimated:
        return None
    return f"the server reported no usage for {estimated} of {len(completed)} answers; their token counts are estimates"


def _held_back(measured: Sequence[RequestRecord], workload: WorkloadConfig) -> str | None:
    if workload.arrival == "closed" or not workload.concurrency:
        return None
    due = sorted(
        (each.sent_s, each.sent_s + each.e2e_s)
        for each in measured
        if each.sent_s is not None and each.e2e_s is not None
    )
    ends: list[float] = []
    waited = 0
    for sent_s, end_s in due:
        while ends and ends[0] <= sent_s:
            heapq.heappop(ends)
        waited += len(ends) >= workload.concurrency
        heapq.heappush(ends, end_s)
    if not waited:
        return None
    return (
        f"{waited} of {len(measured)} requests came while workload.concurrency={workload.concurrency} others were "
        "under way, and were held back: the load is less than the arrivals ask for; workload.concurrency=0 holds "
        "nobody back"
    )


def _failures(measured: Sequence[RequestRecord]) -> str | None:
    failed = [request for request in measured if not request.ok]
    if not failed:
        return None
    return f"{len(failed)} of {len(measured)} requests failed or timed out; first: {failed[0].error}"
