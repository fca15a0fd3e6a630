"""Plugins as installed distributions, sound and broken."""

import logging
import sys
from pathlib import Path

import pytest

from sglk import plugins
from sglk.config.compose import compose
from sglk.errors import BackendError, ConfigError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of distributions that this Python sees."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    monkeypatch.setattr(plugins, "_registered", {})
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("dummy_"):
            del sys.modules[name]


def install(site: Path, name: str, code: str, entry_points: str, version: str = "1.2") -> None:
    package = site / f"dummy_{name}"
    package.mkdir()
    (package / "__init__.py").write_text(code, encoding="utf-8")
    info = site / f"dummy_{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dummy-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def install_backend(site: Path, name: str, code: str) -> None:
    install(site, name, code, f"[sglk.backends]\n{name} = dummy_{name}:Backend\n")


def refusal(name: str) -> str:
    with pytest.raises(BackendError) as caught:
        plugins.load_backend(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plugin_is_loaded_by_its_entry_point(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_backend(site, "toy", "class Backend:\n    api_version = 1\n")
    with caplog.at_level(logging.INFO, "sglk.plugins"):
        assert plugins.load_backend("toy").__module__ == "dummy_toy"
    assert caplog.messages == ["Backend toy loaded successfully"]
    assert compose("serve", ["backend=toy"]).config.backend.name == "toy"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise ImportError('libxpu.so.1: cannot open')", "ImportError: libxpu.so.1: cannot open"),
        ("raise OSError('undefined symbol: xpu_init')", "OSError: undefined symbol: xpu_init"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("import no_such_vendor_library", "ModuleNotFoundError: No module named 'no_such_vendor_library'"),
        ("from sglk.plugins import gone", "ImportError: cannot import name 'gone'"),
        ("Other = 1", "AttributeError"),
        ("Backend = None", "is None, not a DeviceBackend class"),
        (
            "class Backend:\n    api_version = 99",
            "was written for version 99 of the DeviceBackend contract, sglk has 1",
        ),
    ],
)
def test_a_broken_plugin_is_named_with_its_distribution_and_cause(site: Path, code: str, cause: str) -> None:
    install_backend(site, "broken", code)
    install_backend(site, "sound", "class Backend:\n    api_version = 1\n")
    message = refusal("broken")
    assert "'broken'" in message
    assert f"dummy-broken 1.2 at {site}" in message
    assert cause in message
    assert plugins.load_backend("sound")


def test_an_unknown_backend_lists_what_was_searched_and_found(site: Path) -> None:
    install_backend(site, "kunlum", "raise ImportError('not imported for a listing')")
    message = refusal("kunlun")
    assert "did you mean 'kunlum'?" in message
    assert "'sglk.backends'" in message
    assert "cpu (built-in)" in message
    assert f"kunlum (dummy-kunlum 1.2 at {site}" in message
    assert "another environment" in message


def test_two_plugins_of_one_name_are_refused(site: Path) -> None:
    install_backend(site, "twin", "class Backend: pass")
    install(site, "other", "class Backend: pass", "[sglk.backends]\ntwin = dummy_other:Backend\n")
    message = refusal("twin")
    assert "dummy-twin" in message
    assert "dummy-other" in message


def test_a_backend_registers_from_code(site: Path) -> None:
    def factory() -> object:
        return object()

    plugins.register_backend("inline", factory)
    plugins.register_backend("inline", factory)
    assert plugins.load_backend("inline") is factory
    assert "inline" in plugins.backend_names()
    with pytest.raises(BackendError, match="registered already"):
        plugins.register_backend("inline", object)
    with pytest.raises(BackendError, match="registered already"):
        plugins.register_backend("cpu", object)


def test_a_plugin_brings_configuration_but_replaces_none(site: Path) -> None:
    install(site, "conf", "raise RuntimeError('never imported')", "[sglk.conf]\ntoy = dummy_conf\n")
    chips = site / "dummy_conf" / "conf" / "chip"
    chips.mkdir(parents=True)
    chip = "# @package _global_\nchip: {{name: {0}, title: Toy, vendor: Toys, backend: toy}}\n"
    (chips / "toy.yaml").write_text(chip.format("toy"))
    (chips / "cpu.yaml").write_text(chip.format("hijacked"))
    composed = compose("serve", ["chip=toy", "runtime.dtype=auto"])
    assert (composed.config.chip.title, composed.config.backend.name) == ("Toy", "toy")
    assert compose("serve").config.chip.name == "cpu"


def test_a_plugin_without_its_conf_folder_is_named(site: Path) -> None:
    install(site, "bare", "", "[sglk.conf]\ntoy = dummy_bare\n")
    with pytest.raises(ConfigError, match="'dummy-bare' promises a `conf` folder"):
        compose("serve")
