"""What a device or the engine lacks is refused by name, before any weight is read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglk.backends.base import Capabilities
from sglk.backends.cpu import CpuBackend
from sglk.config.compose import compose
from sglk.config.schema import RuntimeConfig
from sglk.engine.loading import load_runner
from sglk.engine.support import check_support
from sglk.errors import BackendError, ConfigError
from sglk.testing.tiny import write_tiny_model

WHERE = "backend 'small' of chip 'card', device group 'a'"


class SmallBackend(CpuBackend):
    """A card with few formats."""

    name = "small"
    api_version = 1
    capabilities = Capabilities(
        dtypes=frozenset({"fp32"}),
        kv_cache_dtypes=frozenset({"fp16", "fp32"}),
        quantization=frozenset({"w8a8"}),
        page_sizes=(128,),
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dtype": "bf16"}, f"runtime.dtype=bf16 is not supported by {WHERE}; choose auto or one of fp32"),
        (
            {"kv_cache_dtype": "fp8_e5m2"},
            f"runtime.kv_cache_dtype=fp8_e5m2 is not supported by {WHERE}; choose auto or one of fp16, fp32",
        ),
        ({"kv_cache_dtype": "fp7"}, f"runtime.kv_cache_dtype=fp7 is not supported by {WHERE}"),
        ({"quantization": "awq"}, f"runtime.quantization=awq is not supported by {WHERE}; supported schemes: w8a8"),
        ({"quantization": "w3"}, "runtime.quantization=w3 is not known to the native engine; choose one of w8a8"),
        ({"page_size": 16}, f"runtime.page_size=16 is not supported by {WHERE}; choose one of 128"),
        ({"tp_size": 2}, f"runtime.tp_size=2 is not supported by {WHERE}, which cannot add over several devices"),
    ],
)
def test_each_limit_names_the_device_and_what_it_has(setting: dict[str, Any], message: str) -> None:
    runtime = replace(RuntimeConfig(page_size=128), **setting)
    with pytest.raises(ConfigError) as caught:
        check_support(runtime, SmallBackend(num_threads=1), WHERE)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("quantization", [None, "w8a8", "w8a8_int8", "compressed-tensors"])
def test_what_the_device_has_passes_under_all_its_names(quantization: str | None) -> None:
    runtime = RuntimeConfig(page_size=128, quantization=quantization, kv_cache_dtype="fp16")
    check_support(runtime, SmallBackend(num_threads=1), WHERE)


def test_nothing_is_read_before_the_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"damaged")
    monkeypatch.setattr("sglk.plugins.claims._registered", {"small": SmallBackend})
    words = [f"model.path={folder}", "model=local", "backend.name=small", "runtime.page_size=128"]
    config = compose("serve", [*words, "runtime.kv_cache_dtype=int8"]).config
    with pytest.raises(ConfigError, match=r"kv_cache_dtype=int8 is not supported by backend 'small' of chip 'cpu'"):
        load_runner(config)


@pytest.mark.parametrize(
    ("words", "device", "there_is"),
    [
        (["groups='cpu:7'"], "cpu:7", "there is only cpu:0"),
        (["groups='cpu:0,cpu:7'", "runtime.tp_size=2"], "cpu:7", "there are only cpu:0 to cpu:1"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_with_those_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], device: str, there_is: str
) -> None:
    monkeypatch.setattr("sglk.engine.loading.OpenModel", lambda *_: pytest.fail("the model was read"))
    config = compose("serve", [f"model={write_tiny_model(tmp_path)}", "profiles=none", *words]).config
    with pytest.raises(BackendError, match=f"device '{device}' of group 'group0' does not exist; {there_is}, so name"):
        load_runner(config)


def test_the_second_of_two_devices_serves(tmp_path: Path) -> None:
    words = ["groups='two:1'", "backend.name=two", "profiles=none", "runtime.num_threads=1"]
    config = compose("serve", [f"model={write_tiny_model(tmp_path)}", *words]).config
    made = []

    class TwoDevices(CpuBackend):
        name = "two"
        api_version = 1

        def __init__(self, *, index: int, **options: Any) -> None:
            super().__init__(index=index, **options)
            made.append(index)

        def num_devices(self, ranks: int) -> int:
            return 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sglk.plugins.claims._registered", {"two": TwoDevices})
        load_runner(config)
    assert made == [1]
