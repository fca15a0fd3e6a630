"""Ranges and rules between settings: everything that types alone do not say, checked once, all problems at once."""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from urllib.parse import urlsplit

from sglk.config.groups import SIMULATED
from sglk.config.keys import leaves, lookup
from sglk.config.quantization import is_declared
from sglk.config.schema import (
    BenchConfig,
    ChipConfig,
    GroupConfig,
    LoadConfig,
    ModelConfig,
    ObjectiveConfig,
    OpsConfig,
    PlanConfig,
    RoomConfig,
    RouterConfig,
    RuntimeConfig,
    SearchConfig,
    ServeConfig,
    ServerConfig,
    SloConfig,
    StudyConfig,
    TrialOpsConfig,
    TuneConfig,
    WorkloadConfig,
)
from sglk.config.secrets import masked
from sglk.config.tensor_parallel import SplitSizes
from sglk.errors import ConfigError, nearest

POLICIES = ("fcfs", "lpm", "shortest_prompt_first")
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
DTYPES = ("auto", "fp32", "bf16", "fp16")
FALLBACKS = ("allow", "warn", "forbid")
ENGINES = ("native",)
PLANNED_ENGINES = ("native", "sglang")
"""Engines whose automatic values a plan can tell."""
MAX_INTEGER = 2**31 - 1
"""Counts, sizes and seeds reach arrays and libraries that hold no more."""
MAX_WORKLOAD_TOKENS = 10**8
"""All prompts are drawn before the first one is sent: more than this do not fit into a client's memory."""
LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
LOG_FORMATS = ("text", "json")
WORKLOADS = ("random", "shared_prefix", "chat", "long_prompt")
BALANCES = ("least_loaded", "round_robin", "prefix_aware")
ARRIVALS = ("closed", "poisson")
APIS = ("auto", "generate", "completions", "chat")
CACHES = ("flush", "salt", "keep")
SAMPLERS = ("grid", "random", "tpe")
PRUNERS = ("none", "median")

_ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?")

_OWN_SOURCES = ("command line", "default")
"""Sources that need no mention: the user has just typed it, or nobody has set it."""

METRICS = (
    "request_throughput",
    "output_throughput",
    "total_throughput",
    "goodput",
    "success_rate",
    *(
        f"{time}_{figure}"
        for time in ("ttft_s", "tpot_s", "itl_s", "e2e_s")
        for figure in ("mean", "p50", "p90", "p99")
    ),
)
"""Figures of a record's summary, which goals may name."""


def check(config: ServeConfig, sources: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError that names every value out of range and every rule between settings that is broken.

    `sources` says where `runtime.*` values come from, so that a problem names the files that it is in.
    """
    problems = [f"{problem}{_origins(problem, sources or {})}" for problem in _problems(config)]
    if problems:
        raise ConfigError("; ".join(problems))


def _origins(problem: str, sources: Mapping[str, str]) -> str:
    named = dict.fromkeys(re.findall(r"runtime\.\w+(?==)", problem))
    found = [f"{key} is from {sources[key]}" for key in named if sources.get(key, "default") not in _OWN_SOURCES]
    return f" ({', '.join(found)})" if found else ""


def _problems(config: ServeConfig) -> Iterator[str]:
    yield from _one_of("backend.fallback", config.backend.fallback, FALLBACKS)
    if config.backend.quarantine and config.backend.fallback == "forbid":
        yield "backend.quarantine=true runs the reference, which backend.fallback=forbid forbids; change one of them"
    yield from _one_of("engine.name", config.engine.name, ENGINES)
    if config.engine.name == "native" and config.engine.extra_args:
        names = _list(f"engine.extra_args.{name}" for name in config.engine.extra_args)
        yield f"{names} has no effect with engine=native, which takes its settings from `runtime`; leave it out"
    yield from runtime_problems(config.runtime, config.chip, config.model)
    yield from _server(config.server)
    yield from _router(config.router)
    yield from _kinds(config.groups, config.backend.name)
    for group in config.groups:
        yield from _device_group(group, group.tp_size or config.runtime.tp_size)
    if isinstance(config, BenchConfig) and config.server.ssl_certfile is not None and config.bench.url is None:
        yield "server.ssl_certfile has no use where a server is started to be measured; leave it out"
    if isinstance(config, BenchConfig):
        yield from _workload(config.workload)
        yield from _load(config.bench)
    if isinstance(config, OpsConfig):
        yield from _trial_ops(config.ops)
    if isinstance(config, PlanConfig):
        yield from _room(config.plan)
    if isinstance(config, TuneConfig):
        yield from _objective(config.objective)
        yield from _search(config.search, config.objective, config)
        yield from _study(config.study)


def _kinds(groups: Sequence[GroupConfig], backend: str) -> Iterator[str]:
    kinds = {device.partition(":")[0] for group in groups for device in group.devices}
    # Groups of several kinds are a fleet, of which the chosen chip is one part at most; with backend=sim a kind may be
    # the name of the chip that is simulated.
    if len(kinds) == 1 and backend not in kinds and backend != SIMULATED:
        device = groups[0].devices[0]
        yield (
            f"device {device!r} of group {groups[0].name!r} is not a device of backend {backend!r}, which drives the"
            f" chosen chip; write {backend}:{device.partition(':')[2]}, or choose the chip whose device it is"
        )


def _device_group(group: GroupConfig, tp: int) -> Iterator[str]:
    if tp < 2:
        return
    count = len(group.devices)
    if count % tp:
        yield f"device group {group.name!r} has {count} devices, which runtime.tp_size={tp} does not divide"
    kinds = sorted({device.partition(":")[0] for device in group.devices})
    if len(kinds) > 1:
        yield (
            f"device group {group.name!r} mixes {' and '.join(kinds)}; the parts of one model, of which"
            f" runtime.tp_size={tp} makes {tp}, run on one kind of device"
        )


def runtime_problems(runtime: RuntimeConfig, chip: ChipConfig, model: ModelConfig) -> Iterator[str]:
    """Yield what is wrong with runtime parameters for one chip and model; a tuner asks it before a trial."""
    for field in fields(runtime):
        yield from _at_most(f"runtime.{field.name}", getattr(runtime, field.name))
    if runtime.chunked_prefill_size != -1:
        yield from _at_least("runtime.chunked_prefill_size", runtime.chunked_prefill_size, 1, "; -1 = no chunking")
    for name in ("max_prefill_tokens", "max_running_requests", "page_size", "tp_size"):
        yield from _at_least(f"runtime.{name}", getattr(runtime, name), 1)
    for name in ("max_total_tokens", "num_threads"):
        yield from _at_least(f"runtime.{name}", getattr(runtime, name), 1)
    yield from _at_least("runtime.context_length", runtime.context_length, 2, ", a token of prompt and one of answer")
    cores = os.cpu_count()
    if cores is not None and runtime.num_threads is not None and runtime.num_threads > cores:
        given = f"runtime.num_threads={runtime.num_threads}"
        yield f"{given} is more than this machine's {cores} cores; write {cores} or null"
    yield from _at_least("runtime.radix_min_len", runtime.radix_min_len, 0)
    yield from _at_least("runtime.random_seed", runtime.random_seed, 0)
    yield from _positive("runtime.schedule_conservativeness", runtime.schedule_conservativeness)
    yield from _positive("runtime.device_memory_gib", runtime.device_memory_gib)
    if not 0 < runtime.mem_fraction_static <= 1:
        yield f"runtime.mem_fraction_static={runtime.mem_fraction_static:g} is not in (0, 1]"
    yield from _one_of("runtime.schedule_policy", runtime.schedule_policy, POLICIES)
    yield from _one_of("runtime.load_format", runtime.load_format, LOAD_FORMATS)
    yield from _one_of("runtime.dtype", runtime.dtype, DTYPES)
    yield from _chip_limits(runtime, chip)
    yield from _tensor_parallel(runtime.tp_size, model)


def _chip_limits(runtime: RuntimeConfig, chip: ChipConfig) -> Iterator[str]:
    for name in ("memory_gib", "bandwidth_gb_s", "interconnect_gb_s"):
        yield from _positive(f"chip.{name}", getattr(chip, name))
    for dtype, tflops in chip.peak_tflops.items():
        yield from _positive(f"chip.peak_tflops.{dtype}", tflops)
    if runtime.dtype in DTYPES:
        yield from _one_of("runtime.dtype", runtime.dtype, ("auto", *chip.dtypes), f" on chip {chip.name!r}")
    yield from _kv_cache_dtype(runtime.kv_cache_dtype, chip)
    if runtime.quantization is not None and not is_declared(runtime.quantization, chip.quantization):
        allowed = ("null", *chip.quantization)
        yield from _one_of("runtime.quantization", runtime.quantization, allowed, f" on chip {chip.name!r}")
    if chip.page_sizes and runtime.page_size not in chip.page_sizes:
        allowed_sizes = _list(chip.page_sizes)
        yield f"runtime.page_size={runtime.page_size} is not allowed on chip {chip.name!r}; allowed: {allowed_sizes}"
    chunk, page = runtime.chunked_prefill_size, runtime.page_size
    if chunk > 0 and page > 0 and chunk % page:
        lower = chunk // page * page or page
        yield (
            f"runtime.chunked_prefill_size={chunk} is not a multiple of runtime.page_size={page};"
            f" write {lower} or {lower + page}"
        )


def _kv_cache_dtype(dtype: str, chip: ChipConfig) -> Iterator[str]:
    allowed = ("auto", *chip.kv_cache_dtypes)
    if dtype == "fp8" and (formats := [name for name in allowed if name.startswith("fp8_")]):
        # Engines disagree on which of them `fp8` is, and a profile must mean the same on all.
        choices = " or ".join(formats)
        yield f"runtime.kv_cache_dtype=fp8 does not say which format; on chip {chip.name!r} write {choices}"
    else:
        yield from _one_of("runtime.kv_cache_dtype", dtype, allowed, f" on chip {chip.name!r}")


def _tensor_parallel(tp: int, model: ModelConfig) -> Iterator[str]:
    heads = model.num_attention_heads
    # The numbers of a model given by path are in its own files, and checked when they are read.
    if tp < 1 or heads is None:
        return
    kv_heads = heads if model.num_key_value_heads is None else model.num_key_value_heads
    if min(heads, kv_heads) < 1 or heads % kv_heads:
        yield f"model {model.name!r} has {heads} attention heads, which its {kv_heads} key-value heads do not divide"
        return
    problem = SplitSizes(heads, kv_heads, _inner_widths(model)).problem(tp, model.name)
    if problem is not None:
        yield problem


def _inner_widths(model: ModelConfig) -> frozenset[int]:
    dense = model.num_experts is None or model.first_dense_layers > 0
    widths = (model.intermediate_size if dense else None, model.moe_intermediate_size)
    return frozenset(width for width in widths if width is not None)


def _server(server: ServerConfig) -> Iterator[str]:
    if not server.host:
        yield "server.host is empty; write 127.0.0.1 for this machine alone, 0.0.0.0 for all interfaces"
    if not 0 <= server.port <= 65535:
        yield f"server.port={server.port} is not a port; allowed: 0 (any free port) to 65535"
    for name in ("api_key", "admin_api_key"):
        key = getattr(server, name)
        # An unset variable of the environment must not open the server.
        if key is not None and not key.strip():
            yield f"server.{name} is empty; write the key, or null for none"
        yield from _header(f"server.{name}", key)
    yield from _tls(server)
    for origin in server.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            yield (
                f"server.cors_origins: {origin!r} is not the origin of a web site; write scheme://host or"
                " scheme://host:port, without a path"
            )
    yield from _positive("server.request_timeout_s", server.request_timeout_s)
    yield from _one_of("server.log_level", server.log_level, LOG_LEVELS)
    yield from _one_of("server.log_format", server.log_format, LOG_FORMATS)
    if server.otlp_endpoint is not None:
        yield from _url("server.otlp_endpoint", server.otlp_endpoint)
    for name in ("max_queued_requests", "max_choices"):
        yield from _at_least(f"server.{name}", getattr(server, name), 1)
        yield from _at_most(f"server.{name}", getattr(server, name))
    if server.shutdown_timeout_s < 0 or not math.isfinite(server.shutdown_timeout_s):
        yield f"server.shutdown_timeout_s={server.shutdown_timeout_s:g} is not a number of seconds from 0 up"


def _tls(server: ServerConfig) -> Iterator[str]:
    if server.ssl_keyfile is not None and server.ssl_certfile is None:
        yield "server.ssl_keyfile is given without server.ssl_certfile; give both"
    if server.ssl_certfile is not None and not server.ssl_certfile:
        yield "server.ssl_certfile is empty; name the certificate's file, or write null for plain HTTP"


def _router(router: RouterConfig) -> Iterator[str]:
    yield from _one_of("router.policy", router.policy, BALANCES)
    yield from _at_least("router.breaker_failures", router.breaker_failures, 1)
    for name in ("breaker_cool_down_s", "step_timeout_s", "restart_wait_s"):
        yield from _positive(f"router.{name}", getattr(router, name))
    header = router.session_header
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
        yield f"router.session_header={header!r} is not the name of an HTTP header; write one such as x-session-id"


def _workload(workload: WorkloadConfig) -> Iterator[str]:
    yield from _one_of("workload.kind", workload.kind, WORKLOADS)
    yield from _one_of("workload.arrival", workload.arrival, ARRIVALS)
    for name in ("num_requests", "input_len", "output_len", "num_prefixes", "turns"):
        yield from _at_least(f"workload.{name}", getattr(workload, name), 1)
    for name in ("prefix_len", "warmup_requests", "seed"):
        yield from _at_least(f"workload.{name}", getattr(workload, name), 0)
    yield from _at_least("workload.concurrency", workload.concurrency, 1 if workload.arrival == "closed" else 0)
    if not 0 < workload.range_ratio <= 1:
        yield f"workload.range_ratio={workload.range_ratio:g} is not in (0, 1]"
    requests = workload.num_requests + workload.warmup_requests
    tokens = requests * (workload.input_len + workload.output_len) + workload.num_prefixes * workload.prefix_len
    if tokens > MAX_WORKLOAD_TOKENS:
        yield (
            f"workload {workload.name!r} has {tokens} tokens in all, more than {MAX_WORKLOAD_TOKENS}; lower"
            " workload.num_requests, .input_len, .output_len, .prefix_len or .num_prefixes"
        )
    yield from _positive("workload.rate", workload.rate)
    if workload.arrival == "poisson" and workload.rate is None:
        yield "workload.arrival=poisson needs workload.rate, the mean arrivals per second"


def _load(bench: LoadConfig) -> Iterator[str]:
    yield from _one_of("bench.api", bench.api, APIS)
    yield from _one_of("bench.cache", bench.cache, CACHES)
    yield from _positive("bench.timeout_s", bench.timeout_s)
    if not 0 <= bench.max_failure_rate <= 1:
        yield f"bench.max_failure_rate={bench.max_failure_rate:g} is not in [0, 1]"
    if bench.url is not None:
        yield from _url("bench.url", bench.url)
    yield from _header("bench.api_key", bench.api_key)
    if bench.salt is not None and bench.cache != "salt":
        yield f"bench.salt={bench.salt} has no effect with bench.cache={bench.cache}; write bench.cache=salt"
    yield from _slo("bench.slo", bench.slo)


def _url(path: str, url: str) -> Iterator[str]:
    if not url.startswith(("http://", "https://")):
        yield f"{path}={url!r} does not begin with http:// or https://"
        return
    try:
        parts = urlsplit(url)
        good = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # a port that is no number, a bracket that does not close
        good = False
    if not good:
        yield f"{path}={masked(url)!r} is not an address such as http://127.0.0.1:8000"


def _header(path: str, key: str | None) -> Iterator[str]:
    if key is not None and not (key.isascii() and key.isprintable()):
        yield f"{path} has signs that no HTTP header can carry; a key is of printable ASCII"


def _slo(path: str, slo: SloConfig) -> Iterator[str]:
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        yield from _positive(f"{path}.{name}", getattr(slo, name))


def _objective(objective: ObjectiveConfig) -> Iterator[str]:
    if not objective.goals:
        yield "objective.goals is empty; write at least one, such as [maximize:output_throughput]"
    for goal in objective.goals:
        direction, _, metric = goal.partition(":")
        if direction not in ("maximize", "minimize"):
            yield f"goal {goal!r} of objective.goals is not of the form maximize:METRIC or minimize:METRIC"
        elif metric not in METRICS:
            yield f"metric {metric!r} of goal {goal!r} is unknown{_hint(metric, METRICS)}"
    metrics = [goal.partition(":")[2] for goal in objective.goals]
    if len(set(metrics)) < len(metrics):
        yield f"objective.goals={objective.goals} names one metric twice"
    yield from _slo("objective.slo", objective.slo)
    slo = objective.slo
    if "goodput" in metrics and slo.ttft_s is None and slo.tpot_s is None and slo.e2e_s is None:
        yield "goal goodput needs a limit; write at least one of objective.slo.ttft_s, .tpot_s, .e2e_s"


def _search(search: SearchConfig, objective: ObjectiveConfig, config: TuneConfig) -> Iterator[str]:
    yield from _one_of("search.sampler", search.sampler, SAMPLERS)
    yield from _one_of("search.pruner", search.pruner, PRUNERS)
    yield from _at_least("search.n_trials", search.n_trials, 1)
    yield from _at_least("search.seed", search.seed, 0)
    if search.pruner != "none" and len(objective.goals) > 1:
        yield (
            f"search.pruner={search.pruner} works with one goal only, objective.goals has {len(objective.goals)};"
            " write search.pruner=none"
        )
    if not search.space:
        yield "search.space is empty; write candidates, such as search.space.runtime.chunked_prefill_size=[512,1024]"
    for key, candidates in search.space.items():
        yield from _dimension(key, candidates, type(config))


def _dimension(key: str, candidates: Sequence[object], root: type) -> Iterator[str]:
    path = f"search.space.{key}"
    known = lookup(root, key)
    if known is None or not key.startswith("runtime."):
        yield f"{path} does not name a runtime parameter{_hint(key, _runtime_keys(root))}"
        return
    if not candidates:
        yield f"{path} has no candidates"
    for value in candidates:
        if not _fits(value, known.type, known.optional):
            yield f"candidate {value!r} of {path} is not {known.wanted}"


def _runtime_keys(root: type) -> list[str]:
    return [path for path in leaves(root) if path.startswith("runtime.")]


def _fits(value: object, wanted: object, optional: bool) -> bool:
    if value is None:
        return optional
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if wanted is bool else str)


def _study(study: StudyConfig) -> Iterator[str]:
    yield from _positive("study.trial_timeout_s", study.trial_timeout_s)
    yield from _positive("study.start_timeout_s", study.start_timeout_s)
    yield from _at_least("study.repeats", study.repeats, 1)


def _trial_ops(ops: TrialOpsConfig) -> Iterator[str]:
    for name, least in (("batch", 1), ("context", 2), ("prompt", 1), ("seed", 0)):
        yield from _at_least(f"ops.{name}", getattr(ops, name), least)
        yield from _at_most(f"ops.{name}", getattr(ops, name))
    yield from _positive("ops.time_s", ops.time_s)
    if not ops.failures:
        yield "ops.failures is empty; write a folder, such as ./op-failures"


def _room(plan: RoomConfig) -> Iterator[str]:
    for name, least in (("context_length", 2), ("requests", 1)):
        yield from _at_least(f"plan.{name}", getattr(plan, name), least)
        yield from _at_most(f"plan.{name}", getattr(plan, name))
    if plan.engine is not None:
        yield from _one_of("plan.engine", plan.engine, PLANNED_ENGINES)


def _at_least(path: str, value: int | None, least: int, note: str = "") -> Iterator[str]:
    if value is not None and value < least:
        yield f"{path}={value} is too small; it is at least {least}{note}"


def _at_most(path: str, value: object) -> Iterator[str]:
    if isinstance(value, int) and value > MAX_INTEGER:
        yield f"{path}={value} is too large; it is at most {MAX_INTEGER}"


def _positive(path: str, value: float | None) -> Iterator[str]:
    if value is not None and not (value > 0 and math.isfinite(value)):
        yield f"{path}={value:g} is not a positive number"


def _one_of(path: str, value: str, allowed: Sequence[str], where: str = "") -> Iterator[str]:
    if value not in allowed:
        hint = nearest(value, allowed) or ";"
        yield f"{path}={value} is not allowed{where}{hint} allowed: {_list(allowed)}"


def _hint(word: str, allowed: Sequence[str]) -> str:
    return nearest(word, allowed) or f"; allowed: {_list(allowed)}"


def _list(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
