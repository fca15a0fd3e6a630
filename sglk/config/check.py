"""Ranges and rules between settings: everything that types alone do not say, checked once, all problems at once."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from sglk.config.bench_schema import BenchConfig
from sglk.config.calibrate_schema import CalibrateConfig
from sglk.config.check_bench import load_problems, workload_problems
from sglk.config.check_calibrate import calibration_problems
from sglk.config.check_engine import engine_problems
from sglk.config.check_nodes import span_problems
from sglk.config.check_numbers import number_problems
from sglk.config.check_render import render_problems
from sglk.config.check_service import router_problems, server_problems
from sglk.config.check_simulate import simulation_problems
from sglk.config.check_study import objective_problems, search_problems, study_problems
from sglk.config.groups import MOST_DEVICES, SIMULATED
from sglk.config.ops_schema import OpsConfig, TrialOpsConfig
from sglk.config.plan_schema import PlanConfig, RoomConfig
from sglk.config.quantization import is_declared
from sglk.config.ranges import at_least, listed, memory, one_of, positive
from sglk.config.render_schema import RenderConfig
from sglk.config.schema import ChipConfig, GroupConfig, ModelConfig, RuntimeConfig, ServeConfig
from sglk.config.simulate_schema import SimulateConfig
from sglk.config.tensor_parallel import SplitSizes, ranks_of
from sglk.config.tune_schema import TuneConfig
from sglk.errors import ConfigError

POLICIES = ("fcfs", "lpm", "shortest_prompt_first")
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
DTYPES = ("auto", "fp32", "bf16", "fp16")
KV_CACHE_DTYPES = ("fp32", "bf16", "fp16", "int8", "fp8_e4m3", "fp8_e5m2")
FALLBACKS = ("allow", "warn", "forbid")
MOST_REQUESTS = 2**16
"""No step has so many; each of them is named in the shape of an op."""
PLANNED_ENGINES = ("native", "sglang")
"""Engines whose automatic values a plan can tell."""

_OWN_SOURCES = ("command line", "default")
"""Sources that need no mention: the user has just typed it, or nobody has set it."""


def check(config: ServeConfig, sources: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError that names every value out of range and every rule between settings that is broken.

    `sources` says where `runtime.*` values come from, so that a problem names the files that it is in.
    """
    # Rules that reckon with numbers beyond all bounds would say more of the same.
    found = list(number_problems("", config)) or list(_problems(config))
    problems = [f"{problem}{_origins(problem, sources or {})}" for problem in found]
    if problems:
        raise ConfigError("; ".join(problems))


def _origins(problem: str, sources: Mapping[str, str]) -> str:
    named = dict.fromkeys(re.findall(r"runtime\.\w+(?==)", problem))
    found = [f"{key} is from {sources[key]}" for key in named if sources.get(key, "default") not in _OWN_SOURCES]
    return f" ({', '.join(found)})" if found else ""


def _problems(config: ServeConfig) -> Iterator[str]:
    yield from one_of("backend.fallback", config.backend.fallback, FALLBACKS)
    if config.backend.quarantine and config.backend.fallback == "forbid":
        yield "backend.quarantine=true runs the reference, which backend.fallback=forbid forbids; change one of them"
    yield from engine_problems(config.engine)
    yield from span_problems(config)
    yield from runtime_problems(config.runtime, config.chip, config.model)
    yield from server_problems(config.server)
    yield from router_problems(config.router)
    yield from _kinds(config.groups, config.backend.name)
    for group in config.groups:
        yield from _device_group(group, group.tp_size or ranks_of(config.runtime))
    if isinstance(config, BenchConfig) and config.server.ssl_certfile is not None and config.bench.url is None:
        yield "server.ssl_certfile has no use where a server is started to be measured; leave it out"
    if isinstance(config, BenchConfig):
        yield from workload_problems(config.workload)
        yield from load_problems(config.bench)
    if isinstance(config, SimulateConfig):
        yield from simulation_problems(config)
    if isinstance(config, OpsConfig):
        yield from _trial_ops(config.ops)
    if isinstance(config, CalibrateConfig):
        yield from calibration_problems(config)
    if isinstance(config, RenderConfig):
        yield from render_problems(config)
    if isinstance(config, PlanConfig):
        yield from _room(config.plan)
    if isinstance(config, TuneConfig):
        yield from objective_problems(config.objective)
        yield from search_problems(config.search, config.objective, config)
        yield from study_problems(config)


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
    count, key = len(group.devices), "runtime.tp_size" if group.tp_size is None else "its tp_size"
    if count % tp:
        yield f"device group {group.name!r} has {count} devices, which {key}={tp} does not divide"
    kinds = sorted({device.partition(":")[0] for device in group.devices})
    if len(kinds) > 1:
        yield (
            f"device group {group.name!r} mixes {' and '.join(kinds)}; the parts of one model, of which"
            f" {key}={tp} makes {tp}, run on one kind of device"
        )


def runtime_problems(runtime: RuntimeConfig, chip: ChipConfig, model: ModelConfig) -> Iterator[str]:
    """Yield what is wrong with runtime parameters for one chip and model; a tuner asks it before a trial."""
    yield from number_problems("runtime", runtime)
    if runtime.chunked_prefill_size != -1:
        yield from at_least("runtime.chunked_prefill_size", runtime.chunked_prefill_size, 1, "; -1 = no chunking")
    for name in ("max_prefill_tokens", "max_running_requests", "page_size", "tp_size"):
        yield from at_least(f"runtime.{name}", getattr(runtime, name), 1)
    for name in ("max_total_tokens", "num_threads"):
        yield from at_least(f"runtime.{name}", getattr(runtime, name), 1)
    yield from at_least("runtime.context_length", runtime.context_length, 2, ", a token of prompt and one of answer")
    cores = os.cpu_count()
    if cores is not None and runtime.num_threads is not None and runtime.num_threads > cores:
        given = f"runtime.num_threads={runtime.num_threads}"
        yield f"{given} is more than this machine's {cores} cores; write {cores} or null"
    yield from at_least("runtime.radix_min_len", runtime.radix_min_len, 0)
    yield from at_least("runtime.random_seed", runtime.random_seed, 0)
    yield from positive("runtime.schedule_conservativeness", runtime.schedule_conservativeness)
    yield from memory("runtime.device_memory_gib", runtime.device_memory_gib)
    if not 0 < runtime.mem_fraction_static <= 1:
        yield f"runtime.mem_fraction_static={runtime.mem_fraction_static:g} is not in (0, 1]"
    yield from one_of("runtime.schedule_policy", runtime.schedule_policy, POLICIES)
    yield from one_of("runtime.load_format", runtime.load_format, LOAD_FORMATS)
    yield from one_of("runtime.dtype", runtime.dtype, DTYPES)
    yield from _chip_limits(runtime, chip)
    yield from _tensor_parallel(ranks_of(runtime), model)


def _chip_limits(runtime: RuntimeConfig, chip: ChipConfig) -> Iterator[str]:
    yield from memory("chip.memory_gib", chip.memory_gib)
    for name in ("bandwidth_gb_s", "interconnect_gb_s"):
        yield from positive(f"chip.{name}", getattr(chip, name))
    yield from at_least("chip.devices_per_machine", chip.devices_per_machine, 1)
    if chip.devices_per_machine is not None and chip.devices_per_machine > MOST_DEVICES:
        yield f"chip.devices_per_machine={chip.devices_per_machine} is too large; it is at most {MOST_DEVICES}"
    for dtype, tflops in chip.peak_tflops.items():
        yield from positive(f"chip.peak_tflops.{dtype}", tflops)
    for name in chip.dtypes:
        yield from one_of("chip.dtypes", name, DTYPES[1:])
    for name in chip.kv_cache_dtypes:
        yield from one_of("chip.kv_cache_dtypes", name, KV_CACHE_DTYPES)
    for size in chip.page_sizes:
        yield from at_least("chip.page_sizes", size, 1)
    if runtime.dtype in DTYPES:
        yield from one_of("runtime.dtype", runtime.dtype, ("auto", *chip.dtypes), f" on chip {chip.name!r}")
    yield from _kv_cache_dtype(runtime.kv_cache_dtype, chip)
    if runtime.quantization is not None and not is_declared(runtime.quantization, chip.quantization):
        allowed = ("null", *chip.quantization)
        yield from one_of("runtime.quantization", runtime.quantization, allowed, f" on chip {chip.name!r}")
    if chip.page_sizes and runtime.page_size not in chip.page_sizes:
        allowed_sizes = listed(chip.page_sizes)
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
        yield from one_of("runtime.kv_cache_dtype", dtype, allowed, f" on chip {chip.name!r}")


def _tensor_parallel(tp: int, model: ModelConfig) -> Iterator[str]:
    for name in ("num_shared_experts", "first_dense_layers"):
        yield from at_least(f"model.{name}", getattr(model, name), 0)
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


def _trial_ops(ops: TrialOpsConfig) -> Iterator[str]:
    for name, least in (("batch", 1), ("context", 2), ("prompt", 1), ("seed", 0)):
        yield from at_least(f"ops.{name}", getattr(ops, name), least)
    if ops.batch > MOST_REQUESTS:
        yield f"ops.batch={ops.batch} is too large; it is at most {MOST_REQUESTS}"
    for name in ("time_s", "timeout_s"):
        yield from positive(f"ops.{name}", getattr(ops, name))
    if not ops.failures:
        yield "ops.failures is empty; write a folder, such as ./op-failures"


def _room(plan: RoomConfig) -> Iterator[str]:
    for name, least in (("context_length", 2), ("requests", 1)):
        yield from at_least(f"plan.{name}", getattr(plan, name), least)
    if plan.engine is not None:
        yield from one_of("plan.engine", plan.engine, PLANNED_ENGINES)
