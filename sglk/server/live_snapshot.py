"""What the dashboard shows of a deployment at one moment."""

import time
from typing import Any

from sglk.cluster.fleet import sum_stats
from sglk.cluster.group import DeviceGroup
from sglk.engine.messages import EngineStats
from sglk.server.entry import Entry
from sglk.server.groups import describe_group, overview
from sglk.server.live_feed import Taken
from sglk.server.metrics import token_usage

HIT_WINDOW = 60
"""Points over which the hit rate is taken: the last minute."""

MAX_ERRORS = 20

ADVICE_ROUTE = "/admin/advice"


def take_snapshot(deployment: Entry) -> Taken:
    """Return a snapshot and its point of the curves: per group, the figures of `_curves` and counters behind them."""
    router = deployment.fleet.router
    stats = {name: sum_stats(each.engine.stats() for each in group.replicas) for name, group in router.groups.items()}
    before = deployment.feed.points[-HIT_WINDOW:]
    groups, curves = [], {}
    for name, group in router.groups.items():
        told = _group(deployment, group, stats[name], before)
        groups.append(told)
        curves[name] = _curves(told, stats[name])
    now = time.time()
    shown = overview(deployment)
    snapshot = {
        "time": now,
        "model": deployment.model_name,
        "started": deployment.created,
        "draining": deployment.draining,
        "requests": deployment.counters.counts(),
        "groups": groups,
        "weights": shown["weights"],
        "can_roll_back": router.weights.before is not None,
        "ramp": shown["ramp"],
        "weights_file": shown["weights_file"],
        "errors": deployment.feed.journal.entries()[:MAX_ERRORS],
        "admin_key": bool(deployment.config.server.admin_api_key or deployment.config.server.api_key),
        "advice": ADVICE_ROUTE,
    }
    return snapshot, {"t": now, "groups": curves}


def _group(deployment: Entry, group: DeviceGroup, stats: EngineStats, before: list[dict[str, Any]]) -> dict[str, Any]:
    told = describe_group(deployment, group)
    for replica, entry in zip(group.replicas, told["replicas"], strict=True):
        own = replica.engine.stats()
        entry |= {"retractions": own.retractions, "evicted_tokens": own.evicted_tokens}
        entry["fallbacks"] = _fallbacks(deployment, replica.name)
    return {
        **told,
        "running": stats.running_requests,
        "queued": stats.queued_requests,
        "tokens_per_s": round(stats.generation_throughput, 3),
        "kv_usage": round(token_usage(stats), 4),
        "hit_rate": _hit_rate(group.name, stats, before),
    }


def _fallbacks(deployment: Entry, replica: str) -> int:
    engine = deployment.fleet.engines.get(replica)
    return 0 if engine is None else sum(choice.fallback for choice in engine.op_report().choices)


def _hit_rate(name: str, stats: EngineStats, before: list[dict[str, Any]]) -> float | None:
    """Return the share of prompt tokens that the prefix cache answered in the last minute; None without any."""
    then = before[0]["groups"][name] if before else {"prompt": 0, "cached": 0}
    if stats.prompt_tokens < then["prompt"]:
        # A replica was started again, and counts from 0.
        then = {"prompt": 0, "cached": 0}
    prompt = stats.prompt_tokens - then["prompt"]
    return round(max(stats.cached_prompt_tokens - then["cached"], 0) / prompt, 4) if prompt else None


def _curves(told: dict[str, Any], stats: EngineStats) -> dict[str, Any]:
    recent = told["recent"]
    return {
        **{name: told[name] for name in ("running", "queued", "tokens_per_s", "kv_usage", "hit_rate")},
        **{name: recent.get(name) for name in ("ttft_p50", "ttft_p99", "tpot_p50", "error_rate")},
        "prompt": stats.prompt_tokens,
        "cached": stats.cached_prompt_tokens,
    }
