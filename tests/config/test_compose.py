"""Composition: every shipped choice, and the order of strength."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from sglk.config.bench_schema import BenchConfig
from sglk.config.catalogue import chips
from sglk.config.check import check
from sglk.config.check_bench import FROM_FILES
from sglk.config.compose import compose
from sglk.config.schema import GroupConfig, ServeConfig
from sglk.config.search_path import search_path
from sglk.config.tune_schema import TuneConfig
from sglk.errors import ConfigError
from tests.config.user_files import write_profile

CHIPS = search_path().options("chip")
MODELS = search_path().options("model")
PAIRS = list(itertools.product(CHIPS, MODELS))
DIAGONAL = [(CHIPS[i % len(CHIPS)], MODELS[i % len(MODELS)]) for i in range(max(len(CHIPS), len(MODELS)))]


def composed(chip: str, model: str) -> ServeConfig:
    config = compose("serve", [f"chip={chip}", f"model={model}", "profiles=none"]).config
    assert (config.chip.name, config.model.name) == (chip, model)
    assert config.backend.name == config.chip.backend
    assert config.groups == [GroupConfig("group0", [f"{config.chip.backend}:0"])]
    return config


def test_every_chip_fits_every_model() -> None:
    configs = [composed(chip, model) for chip, model in DIAGONAL]
    for on_chip, of_model in itertools.product(configs, configs):
        check(replace(on_chip, model=of_model.model))


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "model"), PAIRS)
def test_every_chip_composes_with_every_model(chip: str, model: str) -> None:
    composed(chip, model)


@pytest.mark.parametrize("group", ["workload", "objective", "search"])
def test_every_workload_objective_and_search_composes(group: str) -> None:
    for option in search_path().options(group):
        given = [f"{group}={option}", "search.space.runtime.page_size=[16,32]"]
        given += [f"workload.file={__file__}"] if option in FROM_FILES else []
        assert getattr(compose("tune", given).config, group).name == option


def test_a_custom_search_has_the_dimensions_that_it_is_given() -> None:
    window = "search.space.runtime.max_running_requests=[4,8]"
    assert compose("tune", ["search=custom", window]).config.search.space == {"runtime.max_running_requests": [4, 8]}
    with pytest.raises(ConfigError, match=r"search\.space is empty"):
        compose("tune", ["search=custom"])


def test_each_command_has_its_own_root() -> None:
    assert type(compose("serve").config) is ServeConfig
    assert type(compose("bench").config) is BenchConfig
    assert type(compose("tune").config) is TuneConfig


def test_every_figure_of_a_chip_has_a_source() -> None:
    for option, chip in ((entry.config.name, entry.config) for entry in chips().entries):
        for name in ("memory_gib", "bandwidth_gb_s", "interconnect_gb_s", "peak_tflops"):
            if getattr(chip, name):
                assert chip.figures[name].source, (option, name)
                assert chip.figures[name].quality in ("datasheet", "measured", "derived", "claimed", "unverified")


def test_values_come_from_the_strongest_place(folder: Path) -> None:
    profile = write_profile(folder, "kunlun", "qwen32b", "runtime: {chunked_prefill_size: 2048, radix_min_len: 64}\n")
    composed = compose("serve", ["chip=kunlun", "model=qwen32b", "runtime.radix_min_len=128"])
    runtime = composed.config.runtime
    values = (runtime.radix_min_len, runtime.chunked_prefill_size, runtime.mem_fraction_static, runtime.page_size)
    assert values == (128, 2048, 0.75, 128)
    assert composed.sources["runtime.radix_min_len"] == "command line"
    assert composed.sources["runtime.chunked_prefill_size"] == f"profile {profile}"
    assert composed.sources["runtime.mem_fraction_static"] == "chip kunlun"
    assert (runtime.tp_size, composed.sources["runtime.tp_size"]) == (None, "runtime default")
    assert composed.sources["runtime.enable_torch_compile"] == "default"
    assert composed.profile_path == profile
    assert composed.choices["profiles"] == "kunlun/qwen32b"


def test_the_order_of_words_does_not_weaken_the_command_line(folder: Path) -> None:
    write_profile(folder, "kunlun", "qwen32b")
    composed = compose("serve", ["runtime={chunked_prefill_size: 4096}", "model=qwen32b", "chip=kunlun"])
    assert composed.config.runtime.chunked_prefill_size == 4096
    assert composed.sources["runtime.chunked_prefill_size"] == "command line"


def test_composition_leaves_hydra_and_the_environment_alone(folder: Path) -> None:
    before = dict(os.environ)
    compose("serve")
    assert not GlobalHydra.instance().is_initialized()
    assert dict(os.environ) == before
    assert list(folder.iterdir()) == []
