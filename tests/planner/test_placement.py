"""How many devices a replica gets where nobody says: the fewest with room, of those there are."""

from pathlib import Path
from typing import Any

import pytest

from sglk.backends import vendors
from sglk.config.compose import compose
from sglk.config.schema import GroupConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.errors import ConfigError
from sglk.planner import placement
from sglk.planner.placement import Placement, place
from sglk.planner.plan import plan_deployment
from sglk.testing.tiny import write_tiny_model

W4A16 = ("runtime={quantization: w4a16, context_length: 2048, mem_fraction_static: 0.9, max_running_requests: 2}",)
W8A8 = ("chip=kunlun", "model=qwen32b", "runtime.quantization=w8a8")


def placed(*words: str) -> Placement[Any]:
    return place(compose("plan", [*words, "profiles=none"]))


def size(*words: str) -> int:
    found = placed(*words)
    (replica,) = found.replicas
    assert found.composed.config.runtime.tp_size == replica.config.runtime.tp_size
    assert len(replica.config.groups[0].devices) == replica.config.runtime.tp_size
    return ranks_of(found.composed.config.runtime)


def devices(found: Placement[Any]) -> list[list[str]]:
    return [each.config.groups[0].devices for each in found.replicas]


def test_the_fewest_devices_with_room_are_taken_and_the_reason_is_told() -> None:
    found = placed(*W8A8, "backend=sim")
    (replica,) = found.replicas
    assert replica.config.groups[0].devices == ["sim:0", "sim:1"]
    assert replica.note == (
        "qwen32b in w8a8 needs 34.3 GB a device, kunlun plans 25.8 GB: serving on 2 devices (runtime.tp_size=2)"
    )
    assert found.composed.config.groups == [GroupConfig("group0", ["sim:0", "sim:1"])]
    assert found.composed.sources["runtime.tp_size"] == (
        "automatic: qwen32b in w8a8 needs 34.3 GB a device, kunlun plans 25.8 GB"
    )
    assert plan_deployment(found.replicas, found.composed.config.plan).verdict == "fits"


def test_a_model_with_room_stays_on_one_device() -> None:
    found = placed("chip=kunlun", "model=qwen7b", "backend=sim")
    assert (devices(found), found.replicas[0].note) == ([["sim:0"]], None)
    assert found.composed.sources["runtime.tp_size"] == "automatic: one device has room"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("chip=kunlun", "model=qwen32b"), 4),
        (("chip=kunlun", "model=qwen32b", "runtime.mem_fraction_static=1"), 4),
        # Weights of two devices would leave a pool of a few pages.
        (("chip=a100_40g", "model=qwen32b", "runtime.mem_fraction_static=0.85"), 4),
        (("chip=a100_40g", "model=qwen32b", "runtime={mem_fraction_static: 0.85, context_length: 4096}"), 2),
        (("chip=a100_40g", "model=qwen32b", "runtime={mem_fraction_static: 0.85, max_total_tokens: 16384}"), 2),
        # 29568 inner numbers: over 8 ranks groups of 32 that share a scale would be cut, over 4 they are not.
        (("chip=cpu", "model=qwen72b", "chip.memory_gib=24", "chip.devices_per_machine=8", *W4A16), 4),
        (("chip=cpu", "model=qwen72b", "chip.memory_gib=12", "chip.devices_per_machine=8", *W4A16), 1),
        # Legal are divisors of 40 heads: not 3.
        (("chip=cuda", "chip.memory_gib=24", "chip.devices_per_machine=3", "model=qwen32b"), 1),
        (("chip=cuda", "chip.memory_gib=24", "chip.devices_per_machine=4", "model=qwen32b"), 4),
    ],
)
def test_room_is_counted_as_the_engine_counts_it(words: tuple[str, ...], expected: int) -> None:
    assert size(*words, "backend=sim") == expected


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("runtime.tp_size=1",), id="typed"),
        pytest.param(("groups=[{devices: ['sim:0'], tp_size: 1}]",), id="of a group"),
        pytest.param(("groups=[{devices: ['sim:0'], runtime: {tp_size: 1}}]",), id="in the runtime of a group"),
        pytest.param(("groups='sim:0'",), id="one device is all there is"),
    ],
)
def test_what_is_stated_stays(words: tuple[str, ...]) -> None:
    found = placed(*W8A8, "backend=sim", *words)
    assert devices(found) == [["sim:0"]]
    assert found.replicas[0].config.runtime.tp_size == 1


def test_a_profile_states_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "profiles" / "kunlun" / "qwen7b.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("# @package _global_\nruntime: {tp_size: 4}\n")
    monkeypatch.chdir(tmp_path)
    composed = compose("serve", ["chip=kunlun", "model=qwen7b", "backend=sim"])
    found = place(composed)
    assert (devices(found), found.composed) == ([["sim:0", "sim:1", "sim:2", "sim:3"]], composed)
    automatic = place(compose("serve", ["chip=kunlun", "model=qwen7b", "backend=sim", "runtime.tp_size=null"]))
    assert devices(automatic) == [["sim:0"]]


def test_where_no_number_of_devices_is_enough_one_is_tried() -> None:
    found = placed("chip=rtx4090", "model=qwen72b", "chip.devices_per_machine=2", "backend=sim")
    assert devices(found) == [["sim:0"]]
    assert found.composed.sources["runtime.tp_size"] == "automatic: qwen72b has no room on 2 devices either"


def test_a_short_pool_is_better_than_none() -> None:
    words = ("chip=rtx4090", "model=qwen32b", "chip.devices_per_machine=4", "backend=sim")
    (replica,) = plan_deployment(placed(*words).replicas, placed(*words).composed.config.plan).replicas
    assert 0 < replica.found.kv_tokens < 32768
    assert replica.found.tp_size == 4


def test_main_memory_is_one_for_all_devices() -> None:
    assert size("chip=cpu", "model=qwen72b", "runtime.device_memory_gib=8") == 1


def test_nothing_is_chosen_where_nothing_is_known(tmp_path: Path) -> None:
    for words in (("chip=cuda", "model=qwen72b"), ("chip=h100", f"model.path={tmp_path}")):
        found = placed(*words)
        assert len(devices(found)[0]) == 1
        assert "automatic: nothing can be planned: " in found.composed.sources["runtime.tp_size"]


def test_a_scheme_that_only_the_chip_knows_is_left_to_the_engine_to_refuse() -> None:
    words = ("chip=kunlun", "model=qwen32b", "chip.quantization=[w3a3]", "runtime.quantization=w3a3")
    found = placed(*words)
    assert "runtime.quantization=w3a3 is not known to the native engine" in found.composed.sources["runtime.tp_size"]
    with pytest.raises(ConfigError, match=r"w3a3 is not known to the native engine; choose one of w8a8, "):
        plan_deployment(found.replicas, found.composed.config.plan)


def test_a_model_s_own_files_count(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny", num_hidden_layers=8, max_position_embeddings=4096)
    words = (f"model={folder}", "backend=sim", "runtime.mem_fraction_static=1")
    assert size("chip=kunlun", *words) == 1
    assert size("chip=kunlun", *words, "runtime.device_memory_gib=0.004") == 2


def test_devices_of_a_group_are_joined_only_where_one_is_too_small() -> None:
    groups = "groups=[{name: a, devices: 'kunlun:0,kunlun:1,kunlun:2,kunlun:3'}]"
    small = placed("chip=kunlun", "model=qwen7b", "backend=sim", groups)
    assert devices(small) == [["sim:0"], ["sim:1"], ["sim:2"], ["sim:3"]]
    large = placed(*W8A8, "backend=sim", groups)
    assert devices(large) == [["sim:0", "sim:1"], ["sim:2", "sim:3"]]
    assert [each.name for each in large.replicas] == ["a/0", "a/1"]
    assert large.replicas[1].note == large.replicas[0].note
    # Three devices are divided by 1 and by 3, and 3 does not divide the heads.
    odd = placed(*W8A8, "backend=sim", "groups='kunlun:0,kunlun:1,kunlun:2'")
    assert devices(odd) == [["sim:0"], ["sim:1"], ["sim:2"]]


def test_every_group_gets_its_own_number() -> None:
    groups = "groups='h100:0;kunlun:0,kunlun:1'"
    found = placed("chip=h100", "model=qwen32b", "backend=sim", "runtime.mem_fraction_static=0.95", groups)
    assert devices(found) == [["sim:0"], ["sim:0"], ["sim:1"]]
    found = placed("chip=h100", "model=qwen32b", "backend=sim", groups, "runtime.context_length=8192")
    assert found.composed.sources["runtime.tp_size"].startswith("automatic: group0: one device has room; group1: ")
    mixed = placed(*W8A8, "backend=sim", "groups='h100:0,kunlun:0'")
    assert devices(mixed) == [["sim:0"], ["sim:0"]]


def test_of_a_real_chip_the_machine_s_own_devices_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here: dict[str, int | None] = {"kunlun": None}
    monkeypatch.setattr(placement, "devices_here", lambda backend: here[backend])
    assert size("chip=kunlun", "model=qwen32b") == 4
    here["kunlun"] = 2
    assert size("chip=kunlun", "model=qwen32b") == 1
    assert size(*W8A8) == 2
    assert size("chip=kunlun", "model=qwen32b", "backend=sim") == 4


def test_visible_devices_are_counted(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "renderD128"):
        (tmp_path / "dev" / name).touch()
    assert vendors.devices_here("cuda", {}, tmp_path) == 4
    assert vendors.devices_here("cuda", {"CUDA_VISIBLE_DEVICES": "2,3"}, tmp_path) == 2
    assert vendors.devices_here("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b,GPU-3c"}, tmp_path) == 3
    assert vendors.devices_here("cuda", {"CUDA_VISIBLE_DEVICES": ""}, tmp_path) is None
    assert vendors.devices_here("kunlun", {}, tmp_path) is None
    assert vendors.devices_here("a plugin of somebody", {}, tmp_path) is None
