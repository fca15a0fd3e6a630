"""Ranges and rules between settings."""

import os

import pytest

from sglk.config.compose import compose
from sglk.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["runtime.chunked_prefill_size=0"], "it is at least 1; -1 = no chunking"),
        (["runtime.max_running_requests=2147483648"], "runtime.max_running_requests=2147483648 is too large"),
        (["runtime.random_seed=1000000000000000000"], "is too large; it is at most 2147483647"),
        (["server.max_choices=1000000000000000000"], "server.max_choices=1000000000000000000 is too large"),
        (["runtime.max_running_requests=0"], "runtime.max_running_requests=0 is too small"),
        (["runtime.mem_fraction_static=0"], "is not in (0, 1]"),
        (["runtime.mem_fraction_static=1.01"], "is not in (0, 1]"),
        (["chip.memory_gib=0"], "chip.memory_gib=0 is not a positive number"),
        (["chip.bandwidth_gb_s=-5"], "chip.bandwidth_gb_s=-5 is not a positive number"),
        (["chip.peak_tflops.bf16=0"], "chip.peak_tflops.bf16=0 is not a positive number"),
        (["chip.dtypes=[float32]"], "chip.dtypes=float32 is not allowed; allowed: fp32, bf16, fp16"),
        (["chip.kv_cache_dtypes=[fp32,fp8]"], "chip.kv_cache_dtypes=fp8 is not allowed; allowed: fp32, bf16"),
        (["chip.page_sizes=[16,0]"], "chip.page_sizes=0 is too small; it is at least 1"),
        (["runtime.mem_fraction_static=nan"], "is not a finite number"),
        (["runtime.schedule_policy=lmp"], "did you mean 'lpm'? allowed: fcfs, lpm, shortest_prompt_first"),
        (["runtime.radix_min_len=-1"], "runtime.radix_min_len=-1 is too small"),
        (["runtime.schedule_conservativeness=0"], "is not a positive number"),
        (["runtime.kv_cache_dtype=fp8"], "does not say which format; on chip 'cpu' write fp8_e4m3 or fp8_e5m2"),
        (["runtime.kv_cache_dtype=fp7"], "on chip 'cpu'; allowed: auto, fp32, bf16, fp16, int8, fp8_e4m3, fp8_e5m2"),
        (["chip=kunlun", "runtime.kv_cache_dtype=fp8"], "is not allowed on chip 'kunlun'; allowed: auto, fp16, bf16"),
        (["chip=kunlun", "runtime.quantization=gptq"], "allowed: null, w8a8_int8, compressed-tensors"),
        (["chip=kunlun", "runtime.kv_cache_dtype=fp8_e5m2"], "on chip 'kunlun'; allowed: auto, fp16, bf16"),
        (["chip=kunlun", "runtime.dtype=fp32"], "on chip 'kunlun'; allowed: auto, fp16, bf16"),
        (["runtime.dtype=bfloat16"], "allowed: auto, fp32, bf16, fp16"),
        (["chip=kunlun", "runtime.quantization=fp8"], "allowed: null, w8a8_int8, compressed-tensors"),
        (["chip=kunlun", "runtime.page_size=16"], "is not allowed on chip 'kunlun'; allowed: 128"),
        (["chip=kunlun", "runtime.chunked_prefill_size=3000"], "runtime.page_size=128; write 2944 or 3072"),
        (["runtime.chunked_prefill_size=5"], "write 16 or 32"),
        (
            ["model=qwen32b", "runtime.tp_size=5"],
            "runtime.tp_size=5 does not split the 40 attention heads, 8 key-value heads, feed-forward width 27648 of "
            "'qwen32b' evenly; allowed: 1, 2, 4, 8",
        ),
        (["model=smollm2", "runtime.tp_size=2"], "9 attention heads, 3 key-value heads"),
        (["model=qwen3_30b_a3b", "runtime.tp_size=3"], "feed-forward width 768 of 'qwen3_30b_a3b' evenly"),
        (["model=smollm2", "model.num_key_value_heads=4"], "9 attention heads, which its 4 key-value heads do not"),
        (["groups='cpu:0,cpu:1,cpu:2'", "runtime.tp_size=2", "model=qwen7b"], "has 3 devices"),
        (["groups='cuda:0,cpu:0'", "runtime.tp_size=2", "model=qwen7b"], "group 'group0' mixes cpu and cuda"),
        (["runtime.tp_size=0"], "runtime.tp_size=0 is too small"),
        (["server.port=65536"], "allowed: 0 (any free port) to 65535"),
        (["server.port=-1"], "is not a port"),
        (["server.log_format=xml"], "server.log_format=xml"),
        (["server.otlp_endpoint=localhost:4318"], "does not begin with http:// or https://"),
        (["backend.fallback=never"], "allowed: allow, warn, forbid"),
        (["backend.fallback=forbid", "backend.quarantine=true"], "quarantine=true runs the reference, which"),
        (["engine.name=sglank"], "allowed: native"),
        (["engine.extra_args.foo=1"], "engine.extra_args.foo has no effect with engine=native"),
        (["server.api_key="], "server.api_key is empty; write the key, or null for none"),
        (["server.api_key='  '"], "server.api_key is empty"),
        (["server.admin_api_key=''"], "server.admin_api_key is empty"),
        (["runtime.num_threads=100000"], f"more than this machine's {os.cpu_count()} cores; write {os.cpu_count()} or"),
        (["runtime.context_length=1"], "runtime.context_length=1 is too small; it is at least 2"),
        (["chip=h100", "groups=[{devices: 'cuda:0,cuda:1,cuda:2', tp_size: 2}]"], "has 3 devices, which its tp_size=2"),
        (["chip=h100", "chip.peak_tflops={bf16: many}"], "chip.peak_tflops.bf16=many is not a number"),
        (["chip=h100", "chip.peak_tflops.bf16=many"], "chip.peak_tflops.bf16=many is not a number"),
        (["groups='cuda:0'"], "device 'cuda:0' of group 'group0' is not a device of backend 'cpu'"),
        (["groups='xyz:0'"], "write cpu:0"),
        (["chip=h100", "groups=[{name: a, devices: [cpu:0]}, {name: b, devices: [cpu:1]}]"], "of backend 'cuda'"),
    ],
)
def test_a_deployment_out_of_range_is_refused(words: list[str], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("serve", words)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["workload.arrival=poisson"], "needs workload.rate"),
        (["workload.concurrency=0"], "workload.concurrency=0 is too small"),
        (["workload.range_ratio=0"], "is not in (0, 1]"),
        (["bench.slo.ttft_s=0"], "bench.slo.ttft_s=0 is not a positive number"),
        (["bench.url=localhost:80"], "does not begin with http://"),
        (["bench.salt=x"], "write bench.cache=salt"),
        (["objective.goals=[]"], "objective.goals is empty"),
        (["objective.goals=[output_throughput]"], "is not of the form maximize:METRIC"),
        (["objective.goals=['maximize:output_thruput']"], "did you mean 'output_throughput'?"),
        (["objective.goals=['minimize:goodput','maximize:goodput']"], "names one metric twice"),
        (["objective.goals=['maximize:goodput']"], "goal goodput needs a limit"),
        (["search.pruner=median", "objective=balanced"], "works with one goal only"),
        (["search.space.runtime.chunked_prefil_size=[1]"], "did you mean 'runtime.chunked_prefill_size'?"),
        (["search.space.server.port=[1]"], "does not name a runtime parameter"),
        (["search.space.runtime.page_size=[]"], "has no candidates"),
        (["search.space.runtime.page_size=[16,many]"], "candidate 'many' of search.space.runtime.page_size is not an"),
        (["workload.num_requests=1000000000"], "tokens in all, more than 100000000; lower workload.num_requests"),
        (["workload.input_len=1000000000"], "tokens in all"),
        (["workload.warmup_requests=1000000000"], "tokens in all"),
        (["workload=shared_prefix", "workload.num_prefixes=1000000"], "tokens in all"),
        (["search.n_trials=0"], "search.n_trials=0 is too small"),
        (["study.repeats=0"], "study.repeats=0 is too small"),
    ],
)
def test_a_study_out_of_range_is_refused(words: list[str], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("tune", words)
    assert part in str(caught.value)


def test_an_empty_variable_does_not_open_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLK_TEST_KEY", "")
    with pytest.raises(ConfigError, match=r"server\.api_key is empty"):
        compose("serve", ["server.api_key=${oc.env:SGLK_TEST_KEY}"])


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        compose("serve", ["server.port=70000", "runtime.page_size=0", "runtime.schedule_policy=best"])
    for key in ("server.port", "runtime.page_size", "runtime.schedule_policy"):
        assert key in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["runtime.chunked_prefill_size=-1"],
        ["runtime.mem_fraction_static=1"],
        ["server.port=0"],
        ["server.api_key=null"],
        ["runtime.context_length=2"],
        [f"runtime.num_threads={os.cpu_count()}"],
        ["chip=h100", "groups='cuda:0'"],
        ["groups='cuda:0;cpu:0'"],
        ["chip=h100", "runtime.kv_cache_dtype=fp8_e5m2", "runtime.quantization=fp8"],
        ["chip=kunlun", "runtime.quantization=w8a8"],
        ["runtime.quantization=awq", "runtime.kv_cache_dtype=int8"],
        ["model=qwen7b", "runtime.tp_size=4"],
        ["model=smollm2", "runtime.tp_size=3"],
        ["model=qwen3_30b_a3b", "runtime.tp_size=8"],
    ],
)
def test_the_ends_of_ranges_are_allowed(words: list[str]) -> None:
    assert compose("serve", words).config.groups
