"""One scrape of `/metrics`, and what a device group did between two of them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from sglk.errors import ConfigError

TIME = "sglk_scrape_time_seconds"

Samples = Mapping[str, float]
"""Value per sample name, replicas of a group added up."""


@dataclass(frozen=True)
class Snapshot:
    """What a server said at one moment."""

    at_s: float
    """Unix time."""
    groups: Mapping[str, Samples]
    chips: frozenset[str] = frozenset()


def read_snapshot(text: str) -> Snapshot:
    """Return the metrics in Prometheus' text form; raises ConfigError for what are not those of an sglk server."""
    groups: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    at_s, chips = None, set()
    try:
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples:
                if name == TIME:
                    at_s = value
                if "chip" in labels:
                    chips.add(labels["chip"])
                if "group" in labels and "le" not in labels:
                    groups[labels["group"]][_key(name, labels)] += value
    except (ValueError, KeyError) as error:
        raise ConfigError(f"no metrics in Prometheus' text form: {error}") from None
    if at_s is None or not groups:
        raise ConfigError(f"no metrics of an sglk server ({TIME} is absent); save them by: curl -s URL/metrics")
    return Snapshot(at_s, {name: dict(samples) for name, samples in groups.items()}, frozenset(chips))


def _key(name: str, labels: Mapping[str, str]) -> str:
    outcome = labels.get("outcome")
    return name if outcome is None else f"{name}:{outcome}"


def figures(before: Snapshot | None, after: Snapshot, group: str) -> dict[str, float]:
    """Return what rules speak of, for one group between two snapshots; None = since its start. Absent = not known.

    Gauges are those of `after`. Times are means in seconds, ratios lie in 0 .. 1.
    """
    now = after.groups.get(group, {})
    then = before.groups.get(group, {}) if before else {}

    def grown(name: str) -> float:
        # A replica that was started again counts from 0 again.
        return max(now.get(name, 0.0) - then.get(name, 0.0), 0.0)

    found = {name: now[sample] for name, sample in _GAUGES.items() if sample in now}
    for name, (part, whole) in _RATIOS.items():
        if grown(whole) > 0:
            found[name] = grown(part) / grown(whole)
    found |= {name: grown(sample) for name, sample in _COUNTS.items()}
    if before is not None and after.at_s > before.at_s:
        found["seconds"] = after.at_s - before.at_s
        found["tokens_per_second"] = grown("sglk_generated_tokens_total") / found["seconds"]
    found["chips"] = float(len(after.chips))
    if found.get("kv_capacity_tokens"):
        found["kv_usage"] = now.get("sglk_kv_used_tokens", 0.0) / found["kv_capacity_tokens"]
    return found


_GAUGES = {
    "queued_requests": "sglk_queued_requests",
    "running_requests": "sglk_running_requests",
    "max_running_requests": "sglk_max_running_requests",
    "kv_capacity_tokens": "sglk_kv_capacity_tokens",
    "radix_min_len": "sglk_radix_min_len",
    "fallback_ops": "sglk_op_fallbacks",
    "ready_replicas": "sglk_replica_ready",
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
