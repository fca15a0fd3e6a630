"""From requests to the figures of a run, as the field defines them.

- TTFT: first token minus the intended send time. E2E: last token minus the intended send time.
- TPOT: (E2E - TTFT)/(n - 1), absent for an answer of one token. ITL: every gap between the pieces of an answer.
- Goodput: requests per second that meet every limit of the SLO; a failed request meets none.

Latencies and token rates are those of completed requests. A figure without data is null, never 0 or NaN.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from sglk.bench.record import Counts, RequestRecord
from sglk.config.bench_schema import SloConfig

Summary = dict[str, float | None]

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
_PERCENTILES = (50, 90, 99)


def count(requests: Sequence[RequestRecord]) -> Counts:
    """Return how many requests there were and what became of them."""
    measured = [request for request in requests if request.phase == "measured"]
    return Counts(
        requests=len(measured),
        completed=sum(request.status == "ok" for request in measured),
        failed=sum(request.status == "failed" for request in measured),
        timeout=sum(request.status == "timeout" for request in measured),
        warmup=len(requests) - len(measured),
        short=sum(request.short for request in measured),
    )


def duration(requests: Sequence[RequestRecord]) -> float:
    """Return seconds from the first intended send to the end of the last measured request; 0 if none was sent."""
    spans = [
        (request.sent_s, request.sent_s + request.e2e_s)
        for request in requests
        if request.phase == "measured" and request.sent_s is not None and request.e2e_s is not None
    ]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0.0


def summarise(requests: Sequence[RequestRecord], slo: SloConfig) -> Summary:
    """Return the figures of the measured requests: rates per second, latencies in seconds, shares in [0, 1]."""
    measured = [request for request in requests if request.phase == "measured"]
    completed = [request for request in measured if request.ok]
    good = [request for request in completed if meets(request, slo)]
    span_s = duration(requests) if completed else 0.0
    prompt = _total(request.prompt_tokens for request in completed)
    output = _total(request.completion_tokens for request in completed)
    summary: Summary = {
        "request_throughput": _ratio(len(completed), span_s),
        "output_throughput": _ratio(output, span_s),
        "total_throughput": _ratio(None if prompt is None or output is None else prompt + output, span_s),
        "goodput": _ratio(len(good), span_s),
        "goodput_share": _ratio(len(good), len(measured)),
        "success_rate": _ratio(len(completed), len(measured)),
        "cached_share": cached_share(completed),
        "output_tokens": output,
        "prompt_tokens": prompt,
    }
    for name in LATENCIES:
        summary |= _distribution(name, _values(name, completed))
    return summary


def meets(request: RequestRecord, slo: SloConfig) -> bool:
    """Say whether a completed request keeps every limit of the SLO.

    A request without a first token cannot keep a TTFT limit; one with a single token has no TPOT to break.
    """
    for name, limit in vars(slo).items():
        if limit is None:
            continue
        value: float | None = getattr(request, name)
        if value is None and name == "tpot_s":
            continue
        if value is None or value > limit:
            return False
    return request.ok


def cached_share(requests: Iterable[RequestRecord]) -> float | None:
    """Return the share of prompt tokens answered from the prefix cache; None if the server reports no such count."""
    counted = [
        (request.cached_tokens, request.prompt_tokens)
        for request in requests
        if request.cached_tokens is not None and request.prompt_tokens is not None
    ]
    return _ratio(sum(cached for cached, _ in counted), sum(prompt for _, prompt in counted))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile of non-empty `values`, linear between neighbours."""
    return percentiles(values, (percent,))[0]


def percentiles(values: Sequence[float], percents: Sequence[float]) -> list[float]:
    """Return the same for each of `percents`, without sorting all of the many gaps that a run has."""
    last = len(values) - 1
    places = [last * percent / 100 for percent in percents]
    pairs = [(math.floor(place), min(math.floor(place) + 1, last)) for place in places]
    ordered = np.partition(np.fromiter(values, float, len(values)), [place for pair in pairs for place in pair])
    return [
        float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
        for place, (low, high) in zip(places, pairs, strict=True)
    ]


def _values(name: str, completed: Sequence[RequestRecord]) -> list[float]:
    if name == "itl_s":
        return list(chain.from_iterable([request.itl_s for request in completed]))
    return [value for request in completed if (value := getattr(request, name)) is not None]


def _distribution(name: str, values: Sequence[float]) -> Summary:
    figures: Summary = {f"{name}_mean": _ratio(math.fsum(values), len(values))}
    found = percentiles(values, _PERCENTILES) if values else [None] * len(_PERCENTILES)
    figures |= {f"{name}_p{percent}": each for percent, each in zip(_PERCENTILES, found, strict=True)}
    return figures | {f"{name}_n": len(values)}


def _total(values: Iterable[int | None]) -> int | None:
    """Sum that is unknown as soon as one part is; nothing to add is unknown too."""
    known = list(values)
    if not known or None in known:
        return None
    return sum(value for value in known if value is not None)


def _ratio(part: float | None, whole: float) -> float | None:
    """Divide; None where there is no figure: an unknown part, nothing to divide by, or so little that it overflows."""
    if part is None or whole <= 0:
        return None
    ratio = part / whole
    return ratio if math.isfinite(ratio) else None
