"""Every replica of a fleet gets its own deployment: its chip's defaults, its group's runtime, its share of memory."""

from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.config.fleet import ReplicaConfig, replica_configs
from sglk.errors import ConfigError
from sglk.testing.tiny import write_tiny_model

SHARED = "runtime.mem_fraction_static=0.4"


def fleet(*words: str) -> list[ReplicaConfig]:
    return replica_configs(compose("serve", list(words)))


def test_one_group_of_one_device_is_the_deployment_itself() -> None:
    (only,) = fleet("chip=cpu", "model=smollm2")
    composed = compose("serve", ["chip=cpu", "model=smollm2"])
    assert only.name == "group0/0"
    assert only.config.runtime == composed.config.runtime
    assert only.config.chip == composed.config.chip


def test_devices_of_other_chips_bring_their_own_runtime_defaults() -> None:
    cuda, kunlun, last = fleet("chip=cuda", "model=qwen7b", "groups='cuda:0,kunlun:0;cuda:1'")
    assert [each.name for each in (cuda, kunlun, last)] == ["group0/0", "group0/1", "group1/0"]
    assert (cuda.config.runtime.chunked_prefill_size, kunlun.config.runtime.chunked_prefill_size) == (8192, 3072)
    assert (cuda.config.runtime.mem_fraction_static, kunlun.config.runtime.mem_fraction_static) == (0.8, 0.75)
    assert (kunlun.config.chip.name, kunlun.config.backend.name) == ("kunlun", "kunlun")
    assert kunlun.config.groups[0].devices == ["kunlun:0"]


def test_the_command_line_holds_for_all_groups_and_a_groups_runtime_is_stronger() -> None:
    groups = "groups=[{name: a, devices: [cuda:0]}, {name: b, devices: [kunlun:0], runtime: {max_running_requests: 7}}]"
    a, b = fleet("chip=cuda", "model=qwen7b", "runtime.max_running_requests=9", groups)
    assert (a.config.runtime.max_running_requests, b.config.runtime.max_running_requests) == (9, 7)


def test_simulated_devices_have_the_shape_of_their_groups_chip() -> None:
    groups = "groups=[{name: a, devices: [cpu:0]}, {name: b, devices: [sim:0], chip: kunlun_p800}]"
    a, b = fleet("chip=cpu", "model=smollm2", groups)
    assert (a.config.backend.name, a.config.chip.name) == ("cpu", "cpu")
    assert (b.config.backend.name, b.config.chip.name) == ("sim", "kunlun_p800")
    assert b.config.chip.memory_gib == 96


def test_with_the_simulator_chosen_devices_may_be_named_for_their_chip() -> None:
    a, b = fleet("backend=sim", "model=smollm2", "groups='h100:0;kunlun:1'")
    assert (a.config.backend.name, a.config.chip.name, a.config.groups[0].devices) == ("sim", "h100", ["sim:0"])
    assert (b.config.backend.name, b.config.chip.name, b.config.groups[0].devices) == ("sim", "kunlun", ["sim:1"])
    assert b.config.runtime.chunked_prefill_size == 3072
    (only,) = fleet("chip=h100", "backend=sim", "model=smollm2", "groups=h100:0")
    assert (only.config.backend.name, only.config.groups[0].devices) == ("sim", ["sim:0"])


def test_a_chips_name_in_place_of_its_backends_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"name of a chip that 'cuda' drives; write cuda:0 and `chip: h100`"):
        fleet("chip=cpu", "model=smollm2", "groups='h100:0;cpu:0'")
    with pytest.raises(ConfigError, match=r"device group 'group0': chip=h1000 is unknown; did you mean 'h100'"):
        fleet("backend=sim", "model=smollm2", "groups=h1000:0")


def test_tensor_parallel_sets_are_replicas() -> None:
    groups = "groups=[{name: a, devices: 'cuda:0,cuda:1,cuda:2,cuda:3', tp_size: 2}]"
    first, second = fleet("chip=cuda", "model=qwen7b", groups)
    assert first.config.groups[0].devices == ["cuda:0", "cuda:1"]
    assert second.config.groups[0].devices == ["cuda:2", "cuda:3"]
    assert first.config.runtime.tp_size == 2


def test_groups_may_share_a_device_up_to_the_whole_of_it() -> None:
    assert len(fleet("chip=cpu", "groups='cpu:0;cpu:0'", SHARED)) == 2
    with pytest.raises(ConfigError, match=r"replicas on cpu are to take group0/0 0.7 \+ group1/0 0.7 = 1.4 of its"):
        fleet("chip=cpu", "groups='cpu:0;cpu:1'", "runtime.mem_fraction_static=0.7")
    with pytest.raises(ConfigError, match=r"replicas on cuda:0 are to take"):
        fleet("chip=cuda", "model=qwen7b", "groups='cuda:0,cuda:1;cuda:0'")
    assert len(fleet("chip=cuda", "model=qwen7b", "groups='cuda:0;cuda:1'")) == 2


def test_a_device_that_groups_share_has_one_memory() -> None:
    half = "runtime.mem_fraction_static=0.4"
    shared = "groups=[{devices: 'cuda:0'}, {devices: 'cuda:0', chip: %s}]"
    told = r"cuda:0 has 80 GiB as h100 in group0/0 and 48 GiB as l20 in group1/0; write one `chip` in all groups"
    with pytest.raises(ConfigError, match=told):
        fleet("chip=h100", "model=qwen7b", shared % "l20", half)
    assert len(fleet("chip=h100", "model=qwen7b", shared % "h100", half)) == 2
    # A chip without a stated memory asks the device.
    assert len(fleet("chip=h100", "model=qwen7b", shared % "cuda", half)) == 2


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ("[{devices: [cpu:0], runtime: {max_runing_requests: 3}}]", "did you mean 'max_running_requests'"),
        ("[{devices: [cpu:0], runtime: {max_running_requests: many}}]", "is not an integer"),
        ("[{devices: [cpu:0], runtime: {page_size: true}}]", "is not an integer"),
        (
            "[{devices: [cpu:0], runtime: {mem_fraction_static: 3}}]",
            "device group 'group0': runtime.mem_fraction_static=3",
        ),
        ("[{devices: [cpu:0], chip: cpuu}]", "device group 'group0': chip=cpuu is unknown; did you mean 'cpu'"),
        ("[{devices: [cpu:0], chip: kunlun}]", "chip 'kunlun' is driven by 'kunlun'"),
        ("[{devices: ['cpu:0', 'cpu:1'], tp_size: 3}]", "has 2 devices, which its tp_size=3 does not divide"),
        (
            "[{devices: [cpu:0], runtime: {dtype: null}}]",
            "dtype=null in `runtime` of device group 'group0' is not text",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(groups: str, told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        fleet("chip=cpu", "model=smollm2", f"groups={groups}")
    assert told in str(refusal.value)


def test_a_model_given_by_path_is_that_of_every_group(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tm")
    groups = "groups=[{name: a, devices: [cpu:0]}, {name: b, devices: [sim:0], chip: kunlun}]"
    a, b = fleet("chip=cpu", f"model={tmp_path / 'tm'}", groups)
    assert (a.config.model.path, b.config.model.path) == (str(tmp_path / "tm"),) * 2
    assert (b.config.chip.name, b.config.backend.name) == ("kunlun", "sim")


def test_a_group_may_hold_another_fp8_capability_than_its_neighbour() -> None:
    groups = "groups=[{name: a, devices: [cpu:0]}, {name: b, devices: [sim:0], chip: kunlun}]"
    with pytest.raises(ConfigError, match=r"device group 'b': runtime.kv_cache_dtype=fp8_e5m2 is not allowed on chip"):
        fleet("chip=cpu", "model=smollm2", "runtime.kv_cache_dtype=fp8_e5m2", groups)
