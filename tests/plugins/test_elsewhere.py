"""A backend that code registers is found by the processes of other ranks, or refused before they start."""

import importlib
from pathlib import Path

import pytest

from sglk import plugins
from sglk.backends.cpu import CpuBackend
from sglk.errors import BackendError
from sglk.plugins import claims
from sglk.plugins.elsewhere import address, register_from
from tests.plugins.distributions import BACKEND, install_backend


def test_a_factory_of_a_module_has_an_address(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "dummy_inline.py").write_text(BACKEND)
    factory = importlib.import_module("dummy_inline").Backend
    plugins.register_backend("inline", factory)
    found = address("inline")
    assert found == "dummy_inline:Backend"
    monkeypatch.setattr(claims, "_registered", {})
    register_from("inline", found)
    register_from("inline", found)
    assert plugins.load_backend("inline") is factory


def test_what_is_installed_needs_none(site: Path) -> None:
    install_backend(site, "toy")
    assert address("toy") is None
    assert address("cpu") is None


def test_a_factory_that_no_other_process_can_import_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(CpuBackend):
        api_version = 1

    class Script(CpuBackend):
        api_version = 1

    monkeypatch.setattr(Script, "__module__", "__main__")
    for name, factory in (("local", Local), ("script", Script), ("nameless", lambda **_: None)):
        plugins.register_backend(name, factory)
        with pytest.raises(BackendError, match=f"^backend {name!r} is registered by code that other processes do not"):
            address(name)
