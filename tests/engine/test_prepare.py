"""Device groups that cannot be had are refused before the weights of any of them are read."""

from pathlib import Path
from typing import Any

import pytest

from sglk.backends.base import Capabilities, MemoryInfo
from sglk.backends.cpu import CpuBackend
from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.engine.engine import Engine
from sglk.engine.loading import prepare
from sglk.errors import SglkError
from sglk.models.loader import OpenModel
from sglk.server.serve import load_deployment
from sglk.testing.tiny import write_tiny_model

FRACTION = "runtime.mem_fraction_static=0.2"
OTHER_TOKENS = 640


@pytest.fixture
def no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenModel, "load", lambda _: pytest.fail("weights were read"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("other"), vocab_size=OTHER_TOKENS)


def second(**fields: Any) -> str:
    """Return the words for two groups, of which the second one has `fields`."""
    more = ", ".join(f"{key}: {value}" for key, value in {"devices": "'cpu:0'", **fields}.items())
    return f"groups=[{{name: a, devices: 'cpu:0'}}, {{name: b, {more}}}]"


@pytest.mark.usefixtures("no_weights_are_read")
@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ("groups='cpu:0;cpu:1'", r"device 'cpu:1' of group 'group1' does not exist; there is only cpu:0"),
        ("groups='cpu:0;cpu:0,cpu:7'", r"device 'cpu:7' of group 'group1' does not exist; there is only cpu:0"),
        ("groups='cpu:0;cuda:0'", r"cuda: not available"),
        ("groups='cpu:0;kunlun:0'", r"kunlun: not available"),
        (second(runtime="{mem_fraction_static: 1.0e-6}"), r"^device group 'b': runtime.mem_fraction_static=1e-06 of "),
        (
            second(runtime="{max_total_tokens: 2000000000}"),
            r"^device group 'b': runtime.max_total_tokens=2000000000 needs",
        ),
        (second(model="OTHER"), r"device group 'b' has another tokenizer than that of 'a'; requests can go to either"),
        (second(model="ABSENT"), r"absent"),
        (second(runtime="{context_length: 257}"), r"context_length=257 is beyond the 256 tokens that the model takes"),
        (second(model="qwen32b", runtime="{load_format: dummy}"), r"122.1 GiB in fp32, .* group 'b' has \d.*; use a s"),
    ],
)
def test_a_second_group_that_cannot_be_had_is_refused_before_the_first_one_is_loaded(
    groups: str, complaint: str, model: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBackend, "memory_info", lambda _: MemoryInfo(total=8 * 2**30, free=8 * 2**30))
    groups = groups.replace("OTHER", f"'{other}'").replace("ABSENT", f"'{other.parent / 'absent'}'")
    composed = compose("serve", [f"model={model}", "profiles=none", FRACTION, groups])
    replicas = replica_configs(composed)
    with pytest.raises(SglkError, match=complaint) as refusal:
        load_deployment(composed.config, None, replicas)
    assert "\n" not in str(refusal.value)


class Card(CpuBackend):
    """A card with a little memory of its own."""

    name = "card"
    api_version = 1
    capabilities = Capabilities(dtypes=frozenset({"fp32"}), kv_cache_dtypes=frozenset({"fp32"}))

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(total=4 * 2**20, free=4 * 2**20)


@pytest.mark.usefixtures("no_weights_are_read")
def test_groups_share_the_memory_of_their_device(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglk.plugins.claims._registered", {"card": Card})
    words = [f"model={model}", "profiles=none", "backend.name=card", "groups='card:0;card:0'"]

    def prepared(*more: str) -> None:
        composed = compose("serve", [*words, *more])
        prepare([replica.config for replica in replica_configs(composed)])

    prepared("runtime.mem_fraction_static=0.5")
    half = "runtime.mem_fraction_static=0.5"
    most = 2 * 2**20 // (2 * 2 * 2 * 16 * 4)
    prepared(half, f"runtime.max_total_tokens={most // 2}")
    with pytest.raises(SglkError, match=r"^device group 'group1': runtime.max_total_tokens=\d+ needs "):
        prepared(half, f"runtime.max_total_tokens={int(most * 1.3)}")


def test_what_was_prepared_serves_and_a_restart_prepares_again(model: Path) -> None:
    composed = compose("serve", [f"model={model}", "profiles=none", FRACTION, "groups='cpu:0;cpu:0'"])
    deployment = load_deployment(composed.config, None, replica_configs(composed))
    try:
        assert list(deployment.fleet.engines) == ["group0/0", "group1/0"]
        one, two = deployment.fleet.engines.values()
        assert one.weights_bytes == two.weights_bytes > 0
        again = deployment.fleet._relaunch("group1/0")
        assert isinstance(again, Engine)
        assert again.is_alive
        again.shutdown()
    finally:
        deployment.fleet.shutdown()
