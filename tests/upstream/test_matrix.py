"""Every chip with every model and many settings: each composed command line is one that the engine's parser takes."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglk.config.check import runtime_problems
from sglk.config.compose import compose
from sglk.config.engine_schema import EngineConfig
from sglk.config.groups import parse_groups
from sglk.config.schema import RuntimeConfig, ServeConfig
from sglk.config.search_path import search_path
from sglk.upstream.command import UpstreamCommand
from sglk.upstream.compose import compose_command
from sglk.upstream.interpreter import parser_verdicts
from sglk.upstream.table import flag_table
from tests.upstream.parsing import parser_of

RUNTIMES = 40
TARGETS = [("sglang", "0.5.18"), ("sglang", "0.5.23"), ("vllm", "0.32.0")]
CHIPS = search_path(None).options("chip")
MODELS = [name for name in search_path(None).options("model") if name != "local"]
REPOSITORY = Path(__file__).parents[2]


def runtimes(base: ServeConfig, engine: str) -> Iterator[RuntimeConfig]:
    """Yield settings that sglk takes for this chip and model, and that the engine has words for."""
    draw = random.Random(f"{base.chip.name} {base.model.name} {engine}")
    made = 0
    while made < RUNTIMES:
        runtime = replace(base.runtime, **_drawn(draw, base, engine))
        if not list(runtime_problems(runtime, base.chip, base.model)):
            made += 1
            yield runtime


def _drawn(draw: random.Random, base: ServeConfig, engine: str) -> dict[str, Any]:
    page = draw.choice(base.chip.page_sizes or [1, 16, 32, 64, 128])
    policies = {"vllm": ["fcfs"], "sglang": ["fcfs", "lpm"]}[engine]
    kv_dtypes = [name for name in base.chip.kv_cache_dtypes if name.startswith("fp8") or name == "bf16"]
    vllm = engine == "vllm"
    return {
        "page_size": page,
        "chunked_prefill_size": draw.choice([-1, page, 16 * page, 128 * page]),
        "max_prefill_tokens": draw.choice([1024, 16384]),
        "max_running_requests": draw.choice([1, 32, 200]),
        "enable_mixed_chunk": draw.random() < 0.5,
        "mem_fraction_static": draw.choice([0.3, 0.75, 0.95]),
        "max_total_tokens": draw.choice([None, 131072]),
        "schedule_policy": draw.choice(policies),
        "schedule_conservativeness": 1.0 if vllm else draw.choice([0.5, 1.0, 2.0]),
        "radix_min_len": draw.choice([0, page]),
        "disable_radix_cache": draw.random() < 0.3,
        "kv_cache_dtype": draw.choice(["auto", *kv_dtypes]),
        "dtype": draw.choice(["auto", *base.chip.dtypes]),
        "quantization": draw.choice([None, *(set(base.chip.quantization) & {"awq", "gptq", "compressed-tensors"})]),
        "load_format": draw.choice(["auto", "safetensors", "dummy"]),
        "context_length": draw.choice([None, 4096]),
        "allow_auto_truncate": not vllm and draw.random() < 0.3,
        "tp_size": draw.choice([1, 2, 4, 8]),
        "enable_torch_compile": draw.random() < 0.3,
        "disable_cuda_graph": draw.random() < 0.3,
        "random_seed": draw.randrange(1000),
    }


@cache
def deployment(chip: str, model: str) -> ServeConfig:
    base = compose("serve", [f"chip={chip}", f"model={model}", "profiles=none"]).config
    # Whether the model's file is installed here is not what is tried.
    return replace(base, model=replace(base.model, package=None, hub_id=base.model.hub_id or f"org/{model}"))


def commands(engine: str, version: str, chip: str, models: list[str]) -> Iterator[UpstreamCommand]:
    for model in models:
        base = replace(deployment(chip, model), engine=EngineConfig(engine, version))
        for runtime in runtimes(base, engine):
            groups = parse_groups(None, base.backend.name, runtime.tp_size or 1)
            yield compose_command(replace(base, runtime=runtime, groups=groups))


@pytest.mark.parametrize("chip", ["cpu", "h100", "kunlun"])
def test_composed_command_lines_are_ones_that_the_tables_take(chip: str) -> None:
    # One model for each of three; the whole matrix takes minutes.
    model = MODELS[CHIPS.index(chip) % len(MODELS)]
    added = {"--attention-backend": "kunlun"} if chip.startswith("kunlun") else {}
    for target in (TARGETS[0], TARGETS[-1]):
        parser = parser_of(flag_table(*target), added)
        assert len([parser.parse_args(each.argv[3:]) for each in commands(*target, chip, [model])]) == RUNTIMES


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_every_composed_command_line_is_one_that_the_table_takes(target: tuple[str, str]) -> None:
    parser = parser_of(flag_table(*target), {"--attention-backend": "kunlun"})
    made = [parser.parse_args(each.argv[3:]) for chip in CHIPS for each in commands(*target, chip, MODELS)]
    assert len(made) == RUNTIMES * len(MODELS) * len(CHIPS)


def real(engine: str) -> str:
    python = REPOSITORY / ".upstream" / engine / "bin" / "python"
    if not (python.parents[1] / ".built").exists():
        pytest.skip(f"scripts/upstream-env has not built {engine}")
    return str(python)


@pytest.mark.upstream
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", [("sglang", "0.5.18"), ("vllm", "0.32.0")], ids="-".join)
def test_every_composed_command_line_is_one_that_the_real_parser_takes(target: tuple[str, str]) -> None:
    python = real(target[0])
    made = [each for chip in CHIPS for each in commands(*target, chip, MODELS)]
    environment = {"VLLM_TARGET_DEVICE": "cpu"}
    verdicts = parser_verdicts(python, target[0], [each.argv[3:] for each in made], environment)
    # The vendor's plugin adds `kunlun` to the choices, and is not in this environment.
    refused = {told for told in verdicts if told is not None and "'kunlun'" not in told}
    assert not refused
    assert verdicts.count(None) >= RUNTIMES * len(MODELS) * sum(not chip.startswith("kunlun") for chip in CHIPS)
