"""What the simulator makes of the figures that a team reported from serving on 32 GB Kunlun cards beside GPUs.

Everything is simulated from the chips' peak figures; nothing is tuned to what was reported. A 32B model in bf16 does
not fit one 32 GB card, nor two beside a useful KV pool, so on all chips it is served in w8a8 on two devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from benchmarks.kunlun_page import page
from benchmarks.result import Row, main
from sglk.bench.record import GroupRecord, Record
from sglk.config.compose import Composed, compose
from sglk.config.fleet import replica_configs
from sglk.config.simulate_schema import SimulateConfig
from sglk.simulation.run import simulate

GIB = 2**30
MODEL = ("model=qwen32b", "runtime.tp_size=2", "profiles=none")
DEVICES: Mapping[str, Sequence[str]] = {
    "kunlun": ("chip=kunlun", "runtime.quantization=w8a8"),
    "a100_40g": ("chip=a100_40g", "runtime.quantization=w8a8"),
    "l20": ("chip=l20", "runtime.quantization=w8a8"),
}
GPU_SETTINGS = {"chunked_prefill_size": 8192, "max_running_requests": 32, "mem_fraction_static": 0.8}
CHUNKS, WINDOWS, FRACTIONS = (2048, 3072, 4096, 8192), (16, 32, 64), (0.7, 0.75, 0.8)
MIN_LENS = (0, 64, 128, 256, 512, 1024)
LONG = ("long_prompt", 8192, 256, 16)
"""Kind, prompt, answer, requests at a time."""

ITL_LIMIT_S = 1.0
"""What tuning has to keep in 99 of 100 gaps between two tokens: a reader takes a longer one for a fault."""


def measure(quick: bool) -> list[Row]:
    """Simulate all of it."""
    count = 12 if quick else 48
    return [*_settings(count), *_windows(4 * count), *_chunks(count), *_radix(5 * count)]


def _settings(count: int) -> Iterator[Row]:
    """GPU settings on every chip, then those that a search finds for the Kunlun card."""
    workload = _workload(*LONG, count)
    for name in DEVICES:
        yield from _rows(f"GPU settings | {name}", _run(name, GPU_SETTINGS, workload))
    best, settings = _tuned(workload)
    words = ", ".join(f"{key}={value:g}" for key, value in settings.items())
    yield from _rows(f"tuned | kunlun ({words})", best)


def _tuned(workload: Sequence[str]) -> tuple[Record, dict[str, float]]:
    """Return the best of all settings: most tokens per second among those with gaps that can be borne."""
    found = []
    for chunk, window, fraction in product(CHUNKS, WINDOWS, FRACTIONS):
        settings = {"chunked_prefill_size": chunk, "max_running_requests": window, "mem_fraction_static": fraction}
        found.append((_run("kunlun", settings, workload), settings))
    bearable = [each for each in found if _figure(each[0], "itl_s_p99") <= ITL_LIMIT_S]
    return max(bearable or found, key=lambda each: _figure(each[0], "output_throughput"))


def _windows(count: int) -> Iterator[Row]:
    for name, shape in {
        "prompts of 512": ("random", 512, 256, 96),
        "prompts of 4096": ("random", 4096, 128, 96),
    }.items():
        for window in (32, 64):
            record = _run("kunlun", {"max_running_requests": window}, _workload(*shape, count))
            yield from _rows(f"window, {name} | {window}", record)


def _chunks(count: int) -> Iterator[Row]:
    for chunk in reversed(CHUNKS):
        record = _run("kunlun", {"chunked_prefill_size": chunk}, _workload(*LONG, count))
        yield from _rows(f"chunk | {chunk}", record)


def _radix(count: int) -> Iterator[Row]:
    """Conversations whose turns find the ones before them, in a pool that cannot keep them all."""
    workload = (
        *_workload("chat", 96, 96, 32, count),
        "workload.turns=4",
        "workload.num_prefixes=8",
        "workload.prefix_len=64",
    )
    for min_len in MIN_LENS:
        settings = {"radix_min_len": min_len, "max_total_tokens": 24576}
        yield from _rows(f"radix_min_len | {min_len}", _run("kunlun", settings, workload))


def _workload(kind: str, prompt: int, answer: int, at_a_time: int, count: int) -> tuple[str, ...]:
    return (
        f"workload={kind}",
        f"workload.num_requests={count}",
        f"workload.input_len={prompt}",
        f"workload.output_len={answer}",
        f"workload.concurrency={at_a_time}",
        "workload.range_ratio=0.8",
    )


def _run(name: str, settings: Mapping[str, float], workload: Sequence[str]) -> Record:
    words = [f"runtime.{key}={value:g}" for key, value in settings.items()]
    composed: Composed[SimulateConfig] = compose("simulate", [*MODEL, *DEVICES[name], *words, *workload])
    record = simulate(composed.config, replica_configs(composed), calibration="none")
    assert record.valid, record.warnings
    return record


def _rows(name: str, record: Record) -> Iterator[Row]:
    assert record.simulated_groups is not None
    (group,) = record.simulated_groups
    yield Row(f"{name} | output tokens/s", _figure(record, "output_throughput"), "tok/s")
    yield Row(f"{name} | TTFT p50", _figure(record, "ttft_s_p50"), "s")
    yield Row(f"{name} | TPOT p50", _figure(record, "tpot_s_p50"), "s")
    yield Row(f"{name} | ITL p99", _figure(record, "itl_s_p99"), "s")
    yield Row(f"{name} | GiB a device in use", _used_gib(group), "GiB")
    yield Row(f"{name} | retractions", group.engine_stats["retractions"], "")
    yield Row(f"{name} | hit rate", group.engine_stats.get("cache_hit_rate", 0.0), "")
    yield Row(f"{name} | evicted tokens", group.engine_stats["evicted_tokens"], "")


def _used_gib(group: GroupRecord) -> float:
    """Weights, and keys and values of live requests at their most."""
    return (group.weights_bytes + group.peak_kv_tokens * group.kv_bytes_per_token) / GIB


def _figure(record: Record, name: str) -> float:
    value = record.summary[name]
    assert value is not None
    return value


if __name__ == "__main__":
    raise SystemExit(main("kunlun_study", measure, page=page))
