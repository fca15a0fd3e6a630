"""`/metrics`, and the figures of one engine in it."""

from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from sglk.engine.messages import EngineStats


def cache_hit_rate(stats: EngineStats) -> float:
    """Share of all prompt tokens that the prefix cache answered."""
    return stats.cached_prompt_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0


def token_usage(stats: EngineStats) -> float:
    """Share of the KV pool that live requests hold."""
    return stats.kv_used_tokens / stats.kv_capacity_tokens if stats.kv_capacity_tokens else 0.0


def gauges(stats: EngineStats) -> Iterator[tuple[str, float, str]]:
    """Yield name, value and meaning of each gauge; figures that SGLang has too come under both names."""
    yield "sglk_running_requests", stats.running_requests, "Requests in the running batch."
    yield "sglk_queued_requests", stats.queued_requests, "Requests that wait for admission."
    yield "sglk_kv_capacity_tokens", stats.kv_capacity_tokens, "Size of the KV pool."
    yield "sglk_kv_used_tokens", stats.kv_used_tokens, "KV tokens held by live requests."
    yield "sglk_kv_cached_tokens", stats.kv_cached_tokens, "KV tokens held by the prefix cache alone, evictable."
    yield "sglk_kv_usage_ratio", token_usage(stats), "Share of the KV pool held by live requests."
    yield "sglk_cache_hit_ratio", cache_hit_rate(stats), "Share of prompt tokens answered from the prefix cache."
    yield "sglk_generation_tokens_per_second", stats.generation_throughput, "Throughput over the last few seconds."
    yield "sglang:num_running_reqs", stats.running_requests, "Same as sglk_running_requests."
    yield "sglang:num_queue_reqs", stats.queued_requests, "Same as sglk_queued_requests."
    yield "sglang:num_used_tokens", stats.kv_used_tokens, "Same as sglk_kv_used_tokens."
    yield "sglang:max_total_num_tokens", stats.kv_capacity_tokens, "Same as sglk_kv_capacity_tokens."
    yield "sglang:token_usage", token_usage(stats), "Same as sglk_kv_usage_ratio."
    yield "sglang:cache_hit_rate", cache_hit_rate(stats), "Same as sglk_cache_hit_ratio."
    yield "sglang:gen_throughput", stats.generation_throughput, "Same as sglk_generation_tokens_per_second."


def counters(stats: EngineStats) -> Iterator[tuple[str, float, str]]:
    """Yield name, value and meaning of each counter."""
    yield "sglk_prompt_tokens", stats.prompt_tokens, "Prompt tokens of admitted requests."
    yield "sglk_cached_prompt_tokens", stats.cached_prompt_tokens, "Prompt tokens answered from the prefix cache."
    yield "sglk_generated_tokens", stats.generated_tokens, "Tokens generated."
    yield "sglk_engine_steps", stats.steps, "Forward passes."
    yield "sglk_engine_busy_seconds", stats.busy_s, "Seconds spent in forward passes."
    yield "sglk_retractions", stats.retractions, "Times a running request was put back to free KV."
    yield "sglk_evicted_tokens", stats.evicted_tokens, "Cached KV tokens evicted."
    yield "sglk_sequences_finished", stats.requests_finished, "Answers completed by the engine."
    yield "sglk_sequences_aborted", stats.requests_aborted, "Answers aborted in the engine."
    yield "sglk_sequences_failed", stats.requests_failed, "Answers that failed in the engine."
    yield "sglang:prompt_tokens", stats.prompt_tokens, "Same as sglk_prompt_tokens."
    yield "sglang:cached_tokens", stats.cached_prompt_tokens, "Same as sglk_cached_prompt_tokens."
    yield "sglang:generation_tokens", stats.generated_tokens, "Same as sglk_generated_tokens."
    yield "sglang:num_requests", stats.requests_finished, "Same as sglk_sequences_finished."
    yield "sglang:num_aborted_requests", stats.requests_aborted, "Same as sglk_sequences_aborted."
    yield "sglang:num_retracted_requests", stats.retractions, "Same as sglk_retractions."
    yield "sglang:evicted_tokens", stats.evicted_tokens, "Same as sglk_evicted_tokens."


router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus's text format."""
    registry = request.app.state.deployment.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
