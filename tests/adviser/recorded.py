"""Metrics as a server with one or two device groups gives them."""

from typing import Any

from sglk.adviser.snapshot import Snapshot, read_snapshot

GAUGES = {
    "sglk_queued_requests": 0.0,
    "sglk_running_requests": 4.0,
    "sglk_max_running_requests": 32.0,
    "sglk_kv_capacity_tokens": 10000.0,
    "sglk_kv_used_tokens": 1000.0,
    "sglk_radix_min_len": 0.0,
    "sglk_op_fallbacks": 0.0,
    "sglk_simulated": 0.0,
}

COUNTERS = {
    "sglk_prompt_tokens_total": 1000.0,
    "sglk_cached_prompt_tokens_total": 500.0,
    "sglk_evicted_tokens_total": 0.0,
    "sglk_generated_tokens_total": 1000.0,
    "sglk_sequences_finished_total": 100.0,
    "sglk_retractions_total": 0.0,
    "sglk_replica_restarts_total": 0.0,
    "sglk_router_picks_total": 100.0,
    "sglk_time_to_first_token_seconds_sum": 10.0,
    "sglk_time_to_first_token_seconds_count": 100.0,
    "sglk_queue_time_seconds_sum": 5.0,
    "sglk_queue_time_seconds_count": 100.0,
    "sglk_prefill_latency_seconds_sum": 5.0,
    "sglk_prefill_latency_seconds_count": 100.0,
    "sglk_time_per_output_token_seconds_sum": 2.0,
    "sglk_time_per_output_token_seconds_count": 100.0,
}


def recorded(
    at_s: float = 0.0,
    chips: tuple[str, ...] = ("cpu",),
    failed: float = 0.0,
    backend: str = "cuda",
    process: float = 1.0,
    others: str = "",
    **changes: Any,
) -> str:
    """Return a scrape of group `a`; `changes` replace values, by names without the prefix `sglk_`.

    `backend` is that of its chips, `process` tells servers apart, `others` are lines of other groups and replicas.
    """
    values = {**GAUGES, **COUNTERS, **{f"sglk_{name}": float(value) for name, value in changes.items()}}
    lines = [f"sglk_scrape_time_seconds {at_s}"]
    lines += [f'{name}{{model="m",group="a",replica="a/0"}} {value}' for name, value in values.items()]
    lines += [f'sglk_router_requests_total{{group="a",replica="a/0",outcome="failed"}} {failed}']
    lines += [f'sglk_replica_info{{group="a",replica="a/0",chip="{chip}",backend="{backend}"}} 1' for chip in chips]
    lines += [f'sglk_requests_received_created{{model="m"}} {process}']
    return "\n".join(lines) + "\n" + others


def snapshot(at_s: float = 0.0, **changes: Any) -> Snapshot:
    return read_snapshot(recorded(at_s, **changes))
