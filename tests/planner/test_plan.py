"""What fits and what does not: the examples that people ask about, and deployments of several groups."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import yaml

from sglk.config.compose import compose
from sglk.config.fleet import alone, replica_configs
from sglk.config.plan_schema import PlanConfig
from sglk.config.quoting import shell_form
from sglk.errors import ConfigError
from sglk.planner.plan import DeploymentPlan, ReplicaPlan, plan_deployment

GIB = 2**30


def deployment(*words: str) -> DeploymentPlan:
    composed = compose("plan", [*words, "profiles=none"])
    return plan_deployment(replica_configs(composed), composed.config.plan)


def replica(*words: str) -> ReplicaPlan:
    (found,) = deployment(*words).replicas
    return found


def changes(plan: ReplicaPlan) -> list[dict[str, str]]:
    return [way.changes for way in plan.ways]


def test_two_gpus_of_40_gb_hold_a_model_of_32_billion_weights() -> None:
    one = replica("chip=a100_40g", "model=qwen32b", "plan.context_length=8192")
    assert one.verdict == "fits with changes"
    assert {"runtime.tp_size": "2", "runtime.mem_fraction_static": "0.83"} in changes(one)
    two = replica("chip=a100_40g", "model=qwen32b", "runtime.tp_size=2", "runtime.mem_fraction_static=0.9")
    assert (two.verdict, two.found.quantization, two.found.dtype) == ("fits", None, "bf16")
    assert two.found.weights.total == pytest.approx(31.96 * GIB, rel=0.001)
    assert two.found.requests(32768) == 1
    assert not two.warnings


def test_one_card_of_32_gb_must_quantise_or_split() -> None:
    plain = replica("chip=kunlun", "model=qwen32b", "plan.context_length=4096")
    assert plain.found.kv_tokens == 0
    # Embedding and head stay in two bytes: 8 bits alone are 32 GiB, and of 32 a quarter is not to be planned with.
    assert changes(plain) == [
        {"runtime.tp_size": "2", "runtime.quantization": "w8a8"},
        {"runtime.tp_size": "4"},
    ]
    assert plain.undeclared == ["w4a16"]
    eight = replica("chip=kunlun", "model=qwen32b", "runtime.quantization=w8a8", "plan.context_length=4096")
    assert eight.found.weights.total == pytest.approx(31.98 * GIB, rel=0.001)
    assert changes(eight) == [{"runtime.tp_size": "2"}]
    split = replica("chip=kunlun", "model=qwen32b", "runtime={quantization: w8a8, tp_size: 2}")
    assert split.verdict == "fits"


@pytest.mark.parametrize("model", ["qwen7b", "qwen3_8b", "llama3_8b", "mistral7b"])
def test_kv_on_the_card_of_32_gb_stays_within_22_gb(model: str) -> None:
    for quantization in ("null", "w8a8"):
        found = replica("chip=kunlun", f"model={model}", f"runtime.quantization={quantization}").found
        assert found.kv_tokens > 32768
        assert found.kv_bytes < 22e9
        assert found.weights.total + found.kv_bytes <= 0.75 * 32 * GIB


def changed(config: PlanConfig, changes: Mapping[str, str]) -> ReplicaPlan:
    values = {key.removeprefix("runtime."): yaml.safe_load(value) for key, value in changes.items()}
    config = replace(config, runtime=replace(config.runtime, **values))
    (found,) = plan_deployment(alone(config), config.plan).replicas
    return found


@pytest.mark.parametrize(
    "words",
    [
        "chip=a100_40g model=qwen32b",
        "chip=rtx4090 model=qwen72b",
        "chip=l20 model=mixtral8x7b",
        "chip=cpu model=qwen7b",
        "chip=l20 model=mixtral8x7b runtime.dtype=fp32",
        "chip=a100_40g model=qwen32b runtime.max_total_tokens=70000",
        "chip=a100_40g model=qwen32b runtime.max_total_tokens=40000",
        "chip=h100 model=qwen32b runtime.device_memory_gib=100",
    ],
)
def test_every_way_makes_it_fit_and_no_change_of_it_can_be_left_out(words: str) -> None:
    config = compose("plan", [*words.split(), "backend=sim", "plan.requests=2", "profiles=none"]).config
    plan = changed(config, {})
    assert (plan.verdict, [way.cost for way in plan.ways]) == ("fits with changes", sorted(w.cost for w in plan.ways))
    for way in plan.ways:
        again = changed(config, way.changes)
        assert (again.verdict, again.found) == ("fits", way.result), way.changes
        for key in way.changes:
            fewer = {name: value for name, value in way.changes.items() if name != key}
            left_out = changed(config, fewer)
            assert left_out.verdict != "fits" or left_out.warnings, f"{key} is not needed in {way.changes}"


def test_a_pool_too_large_is_left_to_the_fraction() -> None:
    plan = replica("chip=h100", "model=qwen7b", "runtime.max_total_tokens=90000000")
    assert "runtime.max_total_tokens=90000000 needs" in plan.why
    assert changes(plan) == [{"runtime.max_total_tokens": "null"}]


def test_a_stated_pool_stays_where_it_is_not_in_the_way() -> None:
    plan = replica("chip=a100_40g", "model=qwen32b", "runtime.max_total_tokens=40000")
    assert changes(plan)[1:] == [{"runtime.quantization": "w4a16"}, {"runtime.tp_size": "2"}]
    small = replica("chip=a100_40g", "model=qwen32b", "runtime.tp_size=4", "runtime.max_total_tokens=30000")
    assert changes(small) == [{"runtime.max_total_tokens": "null"}, {"runtime.context_length": "30000"}]


def test_a_stated_pool_takes_what_it_takes_of_the_room_of_a_step() -> None:
    words = ("chip=a100_40g", "model=qwen32b", "runtime.tp_size=2")
    plan = replica(*words, "runtime.max_total_tokens=65000")
    assert (plan.verdict, plan.found.kv_tokens) == ("fits", 64992)
    assert plan.subject.reserve(plan.found) == 40 * GIB - plan.found.weights.total - plan.found.kv_bytes
    (warning,) = plan.warnings
    assert warning.startswith("0.1 GiB are left")
    assert "lower runtime.max_total_tokens or" in warning
    # Such a pool is no way out either.
    one = replica("chip=a100_40g", "model=qwen32b", "runtime.max_total_tokens=65000")
    assert {"runtime.tp_size": "2"} not in changes(one)
    assert {"runtime.tp_size": "4"} in changes(one)


def test_two_bytes_a_number_are_no_smaller_change_than_memory_or_context() -> None:
    words = ("chip=l20", "model=qwen7b", "runtime.dtype=fp32", "runtime.kv_cache_dtype=bf16", "runtime.tp_size=1")
    plan = replica(*words, "plan.requests=8")
    assert changes(plan)[:2] == [{"runtime.mem_fraction_static": "0.89"}, {"runtime.context_length": "23472"}]
    assert {"runtime.dtype": "bf16"} in changes(plan)


def test_a_memory_larger_than_the_device_is_taken_back() -> None:
    plan = replica("chip=a100_40g", "model=qwen7b", "runtime.tp_size=1", "runtime.device_memory_gib=80")
    assert "lower runtime.device_memory_gib=80 to the memory of the device" in plan.why
    assert (plan.verdict, changes(plan)[0]) == ("fits with changes", {"runtime.device_memory_gib": "null"})


def test_nothing_helps_a_model_that_is_too_large_for_main_memory() -> None:
    plan = replica("chip=cpu", "model=qwen72b", "runtime.device_memory_gib=8")
    assert (plan.verdict, plan.ways) == ("cannot", [])
    # More parts in one memory save nothing.
    assert plan.why.endswith("; the smallest weights, w4a16 and bf16 on one device, take 45.5 GiB each")


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ("plan.requests=100000", "24 x 32768: weights in w8a8 and KV in fp16 on 8 devices"),
        ("plan.context_length=200000000", "1 x 792320: weights in w8a8 and KV in fp16 on 8 devices"),
    ],
)
def test_where_nothing_helps_the_largest_pool_is_told(asked: str, most: str) -> None:
    plan = replica("chip=kunlun", "model=qwen32b", asked)
    assert (plan.verdict, plan.ways) == ("cannot", [])
    assert plan.why.endswith(f"; room for at most {most}")


def test_a_pool_larger_than_the_device_is_a_problem_of_the_plan_as_of_the_engine() -> None:
    plan = replica("chip=h100", "model=qwen7b", "backend=sim", "runtime.device_memory_gib=1000")
    assert plan.found.kv_tokens == 0
    assert "lower runtime.device_memory_gib=1000 to the memory of the device" in plan.why


def test_a_fraction_that_leaves_a_step_no_room_is_named() -> None:
    plan = replica("chip=rtx4090", "model=qwen7b", "runtime.mem_fraction_static=0.99")
    assert plan.verdict == "fits"
    assert any("lower runtime.mem_fraction_static" in line for line in plan.warnings)


def test_a_longer_context_than_the_model_s_own_is_named() -> None:
    plan = replica("chip=h100", "model=llama3_8b", "plan.context_length=16384")
    assert plan.warnings == ["requests of 16384 tokens are longer than the 8192 that the model was trained for"]


def test_a_context_that_the_engine_refuses_to_serve_is_not_planned() -> None:
    words = ("chip=h100", "model=llama3_8b", "runtime.context_length=16384")
    with pytest.raises(ConfigError, match=r"context_length=16384 is beyond the 8192 .* choose at most 8192"):
        replica(*words)
    # SGLang has its own say, and a way to be told otherwise.
    assert replica(*words, "engine=sglang").verdict == "fits"


def test_a_shorter_context_that_is_advised_makes_what_was_asked_for_fit() -> None:
    words = ("chip=a100_40g", "model=qwen32b", "runtime.tp_size=1", "runtime.quantization=w8a8")
    (way, *_) = replica(*words, "plan.context_length=30000", "runtime.mem_fraction_static=0.91").ways
    assert way.changes == {"runtime.context_length": "18080"}
    plan = replica(*words, "plan.context_length=30000", "runtime={mem_fraction_static: 0.91, context_length: 18080}")
    assert (plan.verdict, plan.wanted.context_length) == ("fits", 18080)
    assert plan.warnings[0] == (
        "requests of 30000 tokens are refused with runtime.context_length=18080, and not planned for"
    )


def test_a_window_smaller_than_what_has_room_is_named() -> None:
    words = ("chip=h100", "model=qwen0_5b", "plan.context_length=512", "runtime.max_running_requests=16")
    assert replica(*words, "plan.requests=17").warnings == [
        "of 17 requests no more than runtime.max_running_requests=16 run at a time"
    ]
    assert not replica(*words, "plan.requests=16").warnings


def test_each_group_has_its_own_budget() -> None:
    groups = (
        "[{name: gpu, devices: ['cuda:0', 'cuda:1'], tp_size: 2, runtime: {mem_fraction_static: 0.9}},"
        " {name: xpu, devices: ['kunlun:0', 'kunlun:1'], chip: kunlun, runtime: {quantization: w8a8}}]"
    )
    plan = deployment("chip=a100_40g", "model=qwen32b", f"groups={groups}")
    gpu, *cards = plan.replicas
    assert (gpu.name, gpu.verdict, gpu.found.planned) == ("gpu/0", "fits", 40 * GIB)
    assert [card.name for card in cards] == ["xpu/0", "xpu/1"]
    for card in cards:
        assert (card.verdict, card.found.planned, card.found.page_size) == ("fits with changes", 32 * GIB, 128)
    assert plan.verdict == "fits with changes"
    assert [device.name for device in plan.devices] == ["cuda:0", "cuda:1", "kunlun:0", "kunlun:1"]


def test_replicas_on_one_device_share_its_memory() -> None:
    groups = (
        "[{name: large, devices: ['cuda:0'], runtime: {mem_fraction_static: 0.5}},"
        " {name: small, devices: ['cuda:0'], model: qwen0_5b, runtime: {mem_fraction_static: 0.4}}]"
    )
    plan = deployment("chip=h100", "model=qwen7b", f"groups={groups}")
    (device,) = plan.devices
    assert device.replicas == ["large/0", "small/0"]
    assert device.fraction == pytest.approx(0.9)
    assert device.taken == sum(each.found.weights.total + each.found.kv_bytes for each in plan.replicas)
    assert device.taken <= 0.9 * 80 * GIB
    for each in plan.replicas:
        assert each.subject.reserve(each.found) == pytest.approx(0.1 * 80 * GIB, abs=2)
    # A higher fraction of one is what the other has to leave.
    crowded = deployment("chip=h100", "model=qwen7b", f"groups={groups}", "plan.requests=30").replicas[0]
    fractions = [float(way.changes.get("runtime.mem_fraction_static", 0)) for way in crowded.ways]
    assert crowded.ways
    # A step needs its room beside both.
    assert max(fractions) <= 0.6 - crowded.found.reserve_needed / (80 * GIB)


def test_replicas_on_one_simulated_device_are_advised_what_they_may_take_together() -> None:
    groups = "groups='l20:0;l20:0'"
    words = ("chip=l20", "model=qwen7b", "backend=sim", groups, "runtime.mem_fraction_static=0.35", "plan.requests=16")
    for each in deployment(*words).replicas:
        assert each.ways
        assert all(float(way.changes.get("runtime.mem_fraction_static", 0)) <= 0.65 for way in each.ways)


def test_replicas_in_main_memory_are_placed_one_after_another() -> None:
    words = ("chip=cpu", "runtime.mem_fraction_static=0.1", "runtime.max_running_requests=1")
    first, second = deployment(*words, shell_form("groups", "cpu:0;cpu:1").replace('"', "")).replicas
    assert second.subject.room.free == pytest.approx(
        first.subject.room.free - first.found.weights.total - first.found.kv_bytes, abs=2**28
    )
