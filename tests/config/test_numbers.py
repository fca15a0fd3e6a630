"""Numbers beyond all bounds, in every setting that takes one."""

import math
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglk.config.check import check
from sglk.config.compose import compose
from sglk.config.keys import ROOTS, leaves
from sglk.errors import ConfigError

ABSURD: dict[Any, tuple[float, ...]] = {
    int: (2**80, -(2**80), 10**400, 2**63),
    float: (math.nan, math.inf, -math.inf, 1e300, 1e-300),
}


def numbers(root: type) -> list[tuple[str, Any]]:
    return [(path, key.type) for path, key in leaves(root).items() if key.type in ABSURD]


@pytest.mark.parametrize("command", ROOTS)
def test_no_setting_takes_a_number_beyond_all_bounds(command: str) -> None:
    config = compose(command, ["target=systemd"] if command == "render" else []).config
    for path, kind in numbers(ROOTS[command]):
        node, _, name = path.rpartition(".")
        if node.startswith("profile"):  # measured, not set
            continue
        holder = attrgetter(node)(config)
        before = getattr(holder, name)
        for value in ABSURD[kind]:
            setattr(holder, name, value)
            with pytest.raises(ConfigError) as refused:
                check(config)
            assert str(refused.value).startswith(f"{path}="), path
            assert len(str(refused.value)) < 200
        setattr(holder, name, before)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("runtime.page_size=1e300", "runtime.page_size=1e300 is not an integer"),
        (f"runtime.page_size={'9' * 5000}", "the value of runtime.page_size has a number with too many digits"),
        ("router.step_timeout_s=1e9", "router.step_timeout_s=1e+09 is too large; it is at most 1e+06 seconds"),
        ("runtime.device_memory_gib=1e-12", "runtime.device_memory_gib=1e-12 is less than any device has"),
        ("chip.peak_tflops={bf16: 1e400}", "chip.peak_tflops.bf16=inf is not a finite number"),
        ("chip.devices_per_machine=2147483647", "chip.devices_per_machine=2147483647 is too large"),
        ("model.first_dense_layers=-1", "model.first_dense_layers=-1 is too small"),
        (f"runtime.device_memory_gib={10**400}", "a number has hundreds of digits, more than any setting takes"),
        (f"groups=[{{name: a, devices: ['cpu:0'], tp_size: {2**80}}}]", "groups[0].tp_size=12089258196146291747..."),
        (f"groups=[{{name: a, devices: ['cpu:0'], weight: {10**400}}}]", "weight 1000"),
    ],
)
def test_an_absurd_number_is_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose("serve", [word])

    assert str(refused.value).startswith(said)


def test_a_pool_of_prefixes_that_no_client_can_draw_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"more than 100000000; lower .*\.num_prefixes"):
        compose("bench", ["workload=shared_prefix", "workload.num_prefixes=2147483647", "workload.prefix_len=0"])


def test_a_batch_that_no_step_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^ops\.batch=2147483647 is too large; it is at most 65536$"):
        compose("ops", ["ops.batch=2147483647"])


def test_a_candidate_of_a_search_is_held_to_the_same_bounds() -> None:
    with pytest.raises(ConfigError, match=r"^search\.space\.runtime\.mem_fraction_static\[1\]=1000"):
        compose("tune", [f"search.space.runtime.mem_fraction_static=[0.5,{10**400}]"])


def test_a_count_is_held_to_31_bits_and_a_seed_to_63() -> None:
    with pytest.raises(ConfigError, match=r"^workload\.num_requests=2147483648 is too large"):
        compose("bench", ["workload.num_requests=2147483648"])
    assert compose("bench", [f"workload.seed={2**63 - 1}"]).config.workload.seed == 2**63 - 1


def test_what_a_profile_measured_on_a_large_chip_is_no_setting(tmp_path: Path) -> None:
    large = {"peak_memory_bytes": 60 * 2**30, "kv_capacity_tokens": 2**40}
    folder = tmp_path / "profiles" / "h100"
    folder.mkdir(parents=True)
    content = {"runtime": {"chunked_prefill_size": 4096}, "profile": {"results": large, "baseline": large}}
    (folder / "qwen7b.yaml").write_text("# @package _global_\n" + yaml.safe_dump(content))

    composed = compose("serve", ["chip=h100", "model=qwen7b"], config_dir=str(tmp_path))

    assert composed.config.profile.results == large
    assert composed.config.runtime.chunked_prefill_size == 4096


def test_free_options_may_be_any_number() -> None:
    config = compose("serve", ["engine=sglang", "chip=h100", "model=qwen7b", f"engine.extra_args.bytes={2**40}"]).config

    assert config.engine.extra_args == {"bytes": 2**40}


@pytest.mark.parametrize("index", ["99999999999999999999", "4096", "9" * 5000])
def test_a_device_that_no_machine_has_is_refused(index: str) -> None:
    with pytest.raises(ConfigError, match=r"of group 'group0' is on no machine; an index is at most 4095$"):
        compose("plan", [f"groups='cpu:{index}'"])


@pytest.mark.parametrize("index", ["00", "\N{ARABIC-INDIC DIGIT ONE}", "-1"])
def test_a_device_has_one_way_to_be_written(index: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form backend:index, such as cuda:0"):
        compose("plan", [f"groups='cpu:{index}'"])
