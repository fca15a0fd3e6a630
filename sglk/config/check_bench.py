"""Rules of a benchmark: its workload, its load and its limits."""

from collections.abc import Iterator

from sglk.config.bench_schema import LoadConfig, SloConfig, WorkloadConfig
from sglk.config.ranges import address, at_least, header_value, one_of, positive

TRACES = ("mooncake", "azure")
FROM_FILES = (*TRACES, "sharegpt")
WORKLOADS = ("random", "shared_prefix", "chat", "long_prompt", *FROM_FILES)
ARRIVALS = ("closed", "poisson", "trace")
APIS = ("auto", "generate", "completions", "chat")
CACHES = ("flush", "salt", "keep")
MAX_WORKLOAD_TOKENS = 10**8
"""All prompts are drawn before the first one is sent: more than this do not fit into a client's memory."""


def workload_problems(workload: WorkloadConfig) -> Iterator[str]:
    """Yield what is wrong with a workload."""
    yield from one_of("workload.kind", workload.kind, WORKLOADS)
    yield from one_of("workload.arrival", workload.arrival, ARRIVALS)
    for name in ("num_requests", "input_len", "output_len", "num_prefixes", "turns"):
        yield from at_least(f"workload.{name}", getattr(workload, name), 1)
    for name in ("prefix_len", "warmup_requests", "seed"):
        yield from at_least(f"workload.{name}", getattr(workload, name), 0)
    yield from at_least("workload.concurrency", workload.concurrency, 1 if workload.arrival == "closed" else 0)
    if not 0 < workload.range_ratio <= 1:
        yield f"workload.range_ratio={workload.range_ratio:g} is not in (0, 1]"
    yield from _file_problems(workload)
    requests = workload.num_requests + workload.warmup_requests
    tokens = requests * (workload.input_len + workload.output_len) + workload.num_prefixes * max(workload.prefix_len, 1)
    if tokens > MAX_WORKLOAD_TOKENS:
        yield (
            f"workload {workload.name!r} has {tokens} tokens in all, more than {MAX_WORKLOAD_TOKENS}; lower"
            " workload.num_requests, .input_len, .output_len, .prefix_len or .num_prefixes"
        )
    yield from positive("workload.rate", workload.rate)
    if workload.arrival == "poisson" and workload.rate is None:
        yield "workload.arrival=poisson needs workload.rate, the mean arrivals per second"


def _file_problems(workload: WorkloadConfig) -> Iterator[str]:
    for name in ("max_input_len", "max_output_len"):
        yield from at_least(f"workload.{name}", getattr(workload, name), 1)
    yield from positive("workload.time_scale", workload.time_scale)
    if workload.kind in FROM_FILES and workload.file is None:
        yield f"workload.kind={workload.kind} is made from a file; write workload.file=PATH"
    if workload.kind not in FROM_FILES and workload.file is not None:
        yield (
            f"workload.file={workload.file!r} has no effect with workload.kind={workload.kind}; write workload="
            f"{', '.join(FROM_FILES[:-1])} or {FROM_FILES[-1]}"
        )
    if workload.arrival == "trace" and workload.kind not in TRACES:
        yield f"workload.arrival=trace needs a trace, workload.kind={workload.kind} is none; use {' or '.join(TRACES)}"


def load_problems(bench: LoadConfig) -> Iterator[str]:
    """Yield what is wrong with how a target is driven."""
    yield from one_of("bench.api", bench.api, APIS)
    yield from one_of("bench.cache", bench.cache, CACHES)
    yield from positive("bench.timeout_s", bench.timeout_s)
    if not 0 <= bench.max_failure_rate <= 1:
        yield f"bench.max_failure_rate={bench.max_failure_rate:g} is not in [0, 1]"
    if bench.url is not None:
        yield from address("bench.url", bench.url)
    yield from header_value("bench.api_key", bench.api_key)
    if bench.salt is not None and bench.cache != "salt":
        yield f"bench.salt={bench.salt} has no effect with bench.cache={bench.cache}; write bench.cache=salt"
    yield from slo_problems("bench.slo", bench.slo)


def slo_problems(path: str, slo: SloConfig) -> Iterator[str]:
    """Yield which limits under `path` are no times."""
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        yield from positive(f"{path}.{name}", getattr(slo, name))
