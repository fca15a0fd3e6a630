"""What a trial's server is started with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sglk_tuner import measurement
from sglk_tuner.measurement import launcher
from sglk_tuner.space import Params, apply

from sglk.config.compose import compose
from sglk.planner.placement import place

FRACTION, SCHEME = "runtime.mem_fraction_static", "runtime.quantization"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of each server that would be started."""
    servers: list[list[str]] = []

    class Started:
        def __init__(self, overrides: Sequence[str], **_: Any) -> None:
            servers.append([*overrides])

    monkeypatch.setattr(measurement, "LaunchedServer", Started)
    return servers


def sizes(servers: list[list[str]], params: Params, *words: str) -> list[str]:
    """Start a trial's server and return what it is told of its number of devices."""
    composed = place(compose("tune", ["chip=kunlun", "model=qwen32b", "backend=sim", "profiles=none", *words])).composed
    launch = launcher(composed, None, [*params], lambda _: None)
    launch(apply(composed.config, params), Path("log"))
    return [word.partition("=")[2] for word in servers[-1] if word.startswith("runtime.tp_size=")]


def test_a_trial_states_the_devices_that_its_weights_need(started: list[list[str]]) -> None:
    assert sizes(started, {SCHEME: None}) == ["4"]
    assert sizes(started, {SCHEME: "w8a8"}) == ["2"]
    # A change that keeps the weights keeps the devices, whichever trial began with them.
    assert sizes(started, {SCHEME: "w8a8", FRACTION: 0.6}) == ["2"]


def test_a_number_of_devices_that_is_stated_or_searched_stays(started: list[list[str]]) -> None:
    assert sizes(started, {SCHEME: "w8a8"}, "runtime.tp_size=8") == ["8"]
    assert sizes(started, {"runtime.tp_size": 8})[-1] == "8"
    assert sizes(started, {SCHEME: "w8a8"}, "groups='kunlun:0,kunlun:1'") == []


def test_the_composed_number_is_the_default_of_a_study() -> None:
    composed = compose("tune", ["chip=kunlun", "model=qwen32b", "backend=sim", "profiles=none", f"{SCHEME}=w8a8"])
    assert place(composed).composed.config == replace(
        composed.config,
        runtime=replace(composed.config.runtime, tp_size=2),
        groups=[replace(composed.config.groups[0], devices=["sim:0", "sim:1"])],
    )
