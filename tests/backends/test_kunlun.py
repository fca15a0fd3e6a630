"""The kunlun backend with stand-ins for the vendor's libraries; nothing here is a verification on hardware."""

import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends.kunlun import CAPABILITIES, KunlunBackend
from sglk.backends.kunlun_presence import driver_version, missing, nodes
from sglk.config.compose import compose
from sglk.engine.loading import load_runner
from sglk.errors import BackendError, ConfigError
from sglk.testing.tiny import write_tiny_model
from tests.backends.kunlun_on_cpu import KunlunOnCpu, chip


def test_without_the_sdk_one_line_names_all_that_is_missing_and_two_ways_on(tmp_path: Path) -> None:
    words = ["chip=kunlun", f"model={write_tiny_model(tmp_path)}"]
    with pytest.raises(BackendError) as caught:
        load_runner(compose("serve", words).config)
    assert str(caught.value) == (
        "kunlun: not available (no device node /dev/xpu0; no xpu-smi on the PATH; torch_xmlir is not installed in this "
        "Python); `sglk doctor chip=kunlun` lists all that is needed, backend=sim rehearses without a card"
    )


@pytest.mark.usefixtures("sdk")
def test_the_card_is_found_by_its_nodes_and_its_runtime(tmp_path: Path) -> None:
    assert missing({}, tmp_path) == []
    assert missing({"XPU_VISIBLE_DEVICES": ""}, tmp_path) == ["XPU_VISIBLE_DEVICES is empty, which hides every card"]
    for name in ("xpu10", "xpu2", "xpuctrl"):
        (tmp_path / "dev" / name).touch()
    assert [node.name for node in nodes(tmp_path)] == ["xpu0", "xpu2", "xpu10"]


def test_a_machine_with_the_tool_but_without_the_driver_is_told_so(tmp_path: Path) -> None:
    tool = tmp_path / "bin/xpu-smi"
    tool.parent.mkdir()
    tool.touch(0o755)
    assert missing({"PATH": str(tool.parent)}, tmp_path)[0] == "no device node /dev/xpu0"
    assert not any("xpu-smi" in lack for lack in missing({"PATH": str(tool.parent)}, tmp_path))


def test_a_runtime_that_does_not_load_is_named_with_its_own_words(sdk: Path) -> None:
    (sdk / "torch_xmlir.py").write_text("raise OSError('libxpurt.so.1: cannot open shared object file')")
    with pytest.raises(BackendError, match=r"not available \(torch_xmlir does not load \(OSError: libxpurt\.so\.1"):
        KunlunOnCpu()


@pytest.mark.usefixtures("sdk")
def test_what_the_device_is_called_comes_from_the_chip_and_the_software(tmp_path: Path) -> None:
    version = tmp_path / "sys/module/kunlun/version"
    version.parent.mkdir(parents=True)
    version.write_text("5.0.21\n")
    assert driver_version(tmp_path) == "5.0.21"
    info = KunlunOnCpu(chip=chip()).device_info()
    assert (info.name, info.driver, info.sdk) == ("Kunlun P800, 96 GB", "5.0.21", "torch_xmlir 2.9.0, xre 5.19")
    assert KunlunOnCpu.installed_versions() == {"driver": "5.0.21", "sdk": "2.9.0"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fast": True}, "no option 'fast'; it takes use_torch"),
        ({"use_torch_fallback": "no"}, "'no'; choose true or f"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KunlunBackend(**options)


@pytest.mark.usefixtures("sdk")
def test_limits_are_those_of_software_and_chip_together() -> None:
    small = KunlunOnCpu(chip=chip("kunlun")).capabilities
    assert (small.default_dtype, KunlunOnCpu(chip=chip()).capabilities.default_dtype) == ("fp16", "bf16")
    assert small.page_sizes == (128,)
    assert small.kv_cache_dtypes == {"fp16", "bf16"}
    assert CAPABILITIES.quantization == {"w8a8"}
    only_fp32 = replace(chip(), dtypes=["fp32"])
    with pytest.raises(ConfigError, match="declares dtypes fp32, of which the kunlun backend has none; name one of bf"):
        KunlunOnCpu(chip=only_fp32)


@pytest.mark.usefixtures("sdk")
def test_the_start_shows_the_environment_of_the_libraries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XMLIR_ENABLE_FAST_FC", "1")
    with caplog.at_level(logging.INFO):
        KunlunOnCpu()
    assert "environment of the libraries: XMLIR_ENABLE_FAST_FC=1" in caplog.text


def test_sums_go_through_what_the_runtime_has_registered_as_xccl(sdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def create(*arguments: Any) -> str:
        made.append(arguments)
        return "group"

    plugin = torch.distributed.Backend._BackendPlugin(create, False)  # type: ignore[attr-defined]
    monkeypatch.setitem(torch.distributed.Backend._plugins, "XCCL", plugin)  # type: ignore[attr-defined]
    backend = KunlunOnCpu()
    assert backend.process_group("store", 1, 2, timedelta(seconds=5)) == "group"  # type: ignore[arg-type]
    assert made == [("store", 1, 2, timedelta(seconds=5))]


@pytest.mark.usefixtures("sdk")
def test_a_torch_without_collectives_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ProcessGroupXCCL", "ProcessGroupNCCL"):
        monkeypatch.delattr(torch.distributed, name, raising=False)
    with pytest.raises(BackendError, match=r"has no xccl to add over several cards with; set runtime.tp_size=1, or"):
        KunlunOnCpu().process_group(None, 0, 2, timedelta(seconds=5))  # type: ignore[arg-type]
