"""One scrape of `/metrics`, and what a device group did between several of them."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from sglk.errors import ConfigError

TIME = "sglk_scrape_time_seconds"
PROCESS = "sglk_requests_received_created"
INFO = "sglk_replica_info"

SIMULATED = "sim"
"""Backend of cards that are not there, and can be in nobody's way."""

Samples = Mapping[str, float]
"""Value per sample name."""


@dataclass(frozen=True)
class Snapshot:
    """What a server said at one moment."""

    at_s: float
    """Unix time."""
    groups: Mapping[str, Mapping[str, Samples]]
    """Per device group and replica."""
    chips: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Kinds of chip of each group."""
    cards: frozenset[str] = frozenset()
    """Kinds of chip that are really there, of all groups."""
    process: float | None = None
    """What tells the server's process from others, and from itself before a restart; None = not told."""


def read_snapshot(text: str) -> Snapshot:
    """Return the metrics in Prometheus' text form; raises ConfigError for what are not those of an sglk server."""
    if text and not text.endswith("\n"):
        raise ConfigError("it ends in the middle of a line; save all of it by: curl -s URL/metrics")
    groups: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    chips: dict[str, set[str]] = defaultdict(set)
    cards: set[str] = set()
    at_s, process = math.nan, None
    try:
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples:
                if name == TIME:
                    at_s = value
                elif name == PROCESS:
                    process = value
                elif name == INFO:
                    chips[labels["group"]].add(labels["chip"])
                    cards.update({labels["chip"]} if labels.get("backend") != SIMULATED else ())
                elif "group" in labels and "le" not in labels:
                    groups[labels["group"]][labels.get("replica", "")][_key(name, labels)] += value
    except (ValueError, KeyError) as error:
        raise ConfigError(f"no metrics in Prometheus' text form: {error}") from None
    if not math.isfinite(at_s) or not groups:
        raise ConfigError(f"no metrics of an sglk server ({TIME} is absent); save them by: curl -s URL/metrics")
    plain = {group: {name: dict(samples) for name, samples in each.items()} for group, each in groups.items()}
    kinds = {group: frozenset(each) for group, each in chips.items()}
    return Snapshot(at_s, plain, kinds, frozenset(cards), process)


def of_one_process(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Return those of the process that said the last one, oldest first; counters of others cannot be compared."""
    ordered = sorted(snapshots, key=lambda each: each.at_s)
    return [each for each in ordered if each.process == ordered[-1].process]


def figures(stretch: Sequence[Snapshot], group: str) -> dict[str, float]:
    """Return what rules speak of, for one group over a stretch of snapshots; absent = not known.

    Counters are what they grew by from the first snapshot to the last, or since the start where there is one only.
    Gauges are those of the last, `mean_running_requests` but the mean of all. Times are means in seconds, ratios lie
    in 0 .. 1.
    """
    last = stretch[-1]
    now = last.groups.get(group, {})
    then = stretch[0].groups.get(group, {}) if len(stretch) > 1 else {}

    def grown(name: str) -> float:
        return sum(_growth(samples.get(name, 0.0), then.get(each, {}).get(name, 0.0)) for each, samples in now.items())

    found = {name: told for name, (sample, of) in _GAUGES.items() if (told := _gauge(now, sample, of)) is not None}
    for name, (part, whole) in _RATIOS.items():
        if grown(whole) > 0:
            found[name] = grown(part) / grown(whole)
    found |= {name: grown(sample) for name, sample in _COUNTS.items()}
    running = [_gauge(each.groups.get(group, {}), "sglk_running_requests", sum) or 0.0 for each in stretch]
    found["mean_running_requests"] = sum(running) / len(running)
    if last.at_s > stretch[0].at_s:
        found["seconds"] = last.at_s - stretch[0].at_s
        found["tokens_per_second"] = grown("sglk_generated_tokens_total") / found["seconds"]
    found |= {"cards": float(len(last.cards)), "groups": float(len(last.groups))}
    if found.get("kv_capacity_tokens"):
        found["kv_usage"] = (_gauge(now, "sglk_kv_used_tokens", sum) or 0.0) / found["kv_capacity_tokens"]
    return found


def _key(name: str, labels: Mapping[str, str]) -> str:
    outcome = labels.get("outcome")
    return name if outcome is None else f"{name}:{outcome}"


def _growth(now: float, then: float) -> float:
    # A replica that was started again has counted from 0 again.
    return now - then if now >= then else now


def _gauge(replicas: Mapping[str, Samples], sample: str, of: Callable[[Iterable[float]], float]) -> float | None:
    values = [samples[sample] for samples in replicas.values() if sample in samples]
    return of(values) if values else None


_GAUGES: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "queued_requests": ("sglk_queued_requests", sum),
    "running_requests": ("sglk_running_requests", sum),
    "max_running_requests": ("sglk_max_running_requests", sum),
    "kv_capacity_tokens": ("sglk_kv_capacity_tokens", sum),
    "ready_replicas": ("sglk_replica_ready", sum),
    # Replicas of a group have these in common.
    "radix_min_len": ("sglk_radix_min_len", max),
    "fallback_ops": ("sglk_op_fallbacks", max),
    "simulated": ("sglk_simulated", max),
}

_RATIOS = {
    "hit_rate": ("sglk_cached_prompt_tokens_total", "sglk_prompt_tokens_total"),
    "evicted_share": ("sglk_evicted_tokens_total", "sglk_prompt_tokens_total"),
    "ttft_s": ("sglk_time_to_first_token_seconds_sum", "sglk_time_to_first_token_seconds_count"),
    "queue_s": ("sglk_queue_time_seconds_sum", "sglk_queue_time_seconds_count"),
    "prefill_s": ("sglk_prefill_latency_seconds_sum", "sglk_prefill_latency_seconds_count"),
    "tpot_s": ("sglk_time_per_output_token_seconds_sum", "sglk_time_per_output_token_seconds_count"),
    "retractions_per_request": ("sglk_retractions_total", "sglk_sequences_finished_total"),
    "failed_share": ("sglk_router_requests_total:failed", "sglk_router_picks_total"),
}

_COUNTS = {
    "finished_requests": "sglk_sequences_finished_total",
    "failed_requests": "sglk_router_requests_total:failed",
    "retractions": "sglk_retractions_total",
    "evicted_tokens": "sglk_evicted_tokens_total",
    "restarts": "sglk_replica_restarts_total",
}
