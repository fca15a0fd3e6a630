"""The gauges and counters of an upstream engine, from its `/metrics`."""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from sglk.engine.messages import EngineStats

SGLANG = {
    "sglang:num_running_reqs": "running_requests",
    "sglang:num_queue_reqs": "queued_requests",
    "sglang:num_used_tokens": "kv_used_tokens",
    "sglang:max_total_num_tokens": "kv_capacity_tokens",
    "sglang:prompt_tokens_total": "prompt_tokens",
    "sglang:cached_tokens_total": "cached_prompt_tokens",
    "sglang:generation_tokens_total": "generated_tokens",
    "sglang:num_retractions_total": "retractions",
    "sglang:evicted_tokens_total": "evicted_tokens",
    "sglang:gen_throughput": "generation_throughput",
}
VLLM = {
    "vllm:num_requests_running": "running_requests",
    "vllm:num_requests_waiting": "queued_requests",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:prefix_cache_hits_total": "cached_prompt_tokens",
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:num_preemptions_total": "retractions",
}
SGLK = {
    "sglk_running_requests": "running_requests",
    "sglk_queued_requests": "queued_requests",
    "sglk_kv_used_tokens": "kv_used_tokens",
    "sglk_kv_cached_tokens": "kv_cached_tokens",
    "sglk_kv_capacity_tokens": "kv_capacity_tokens",
    "sglk_prompt_tokens_total": "prompt_tokens",
    "sglk_cached_prompt_tokens_total": "cached_prompt_tokens",
    "sglk_generated_tokens_total": "generated_tokens",
    "sglk_engine_steps_total": "steps",
    "sglk_engine_busy_seconds_total": "busy_s",
    "sglk_retractions_total": "retractions",
    "sglk_evicted_tokens_total": "evicted_tokens",
    "sglk_generation_tokens_per_second": "generation_throughput",
}
"""Fields of EngineStats by the name of the sample; a server of sglk shows SGLang's names too, and its own count."""


def read_stats(text: str) -> EngineStats:
    """Return what a scrape says, summed over its labels; figures that it lacks stay 0. Raises ValueError."""
    samples: dict[str, float] = {}
    usage = size = 0.0
    for name, labels, value in _samples(text):
        samples[name] = samples.get(name, 0.0) + value
        if name == "vllm:kv_cache_usage_perc":
            usage = value
        if name == "vllm:cache_config_info":
            size = _number(labels.get("num_gpu_blocks")) * _number(labels.get("block_size"))
    names = next((each for each in (SGLK, SGLANG, VLLM) if samples.keys() & each.keys()), {})
    stats = EngineStats()
    for name, field in names.items():
        if name in samples:
            whole = isinstance(getattr(stats, field), int)
            setattr(stats, field, int(samples[name]) if whole else samples[name])
    if names is VLLM:
        stats.kv_capacity_tokens, stats.kv_used_tokens = int(size), int(usage * size)
    return stats


def steps_of_vllm(text: str) -> str | None:
    """Return that of a scrape which changes with each step of vLLM; None where it says nothing of steps."""
    return "\n".join(line for line in text.splitlines() if line.startswith("vllm:")) or None


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def _number(text: str | None) -> float:
    return float(text) if text and text.isdigit() else 0.0
