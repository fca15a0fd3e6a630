"""What a backend's libraries find in the environment when they load."""

import logging
import os
import subprocess
import sys

import pytest

from sglk.config.compose import compose
from sglk.config.environment import prepare_environment
from sglk.config.schema import BackendConfig


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLK_TEST_SET", "mine")
    monkeypatch.setenv("SGLK_TEST_UNSET", "")
    monkeypatch.delenv("SGLK_TEST_UNSET")
    prepare_environment(BackendConfig(environment={"SGLK_TEST_SET": "theirs", "SGLK_TEST_UNSET": "theirs"}))
    assert (os.environ["SGLK_TEST_SET"], os.environ["SGLK_TEST_UNSET"]) == ("mine", "theirs")


def test_variables_that_come_too_late_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SGLK_TEST_UNSET", "")
    monkeypatch.delenv("SGLK_TEST_UNSET")
    monkeypatch.setitem(sys.modules, "torch", sys)
    with caplog.at_level(logging.WARNING):
        prepare_environment(BackendConfig(name="card", environment={"SGLK_TEST_UNSET": "1"}))
    assert "libraries of backend card that came with it do not see SGLK_TEST_UNSET: set them in the" in caplog.text


def test_a_chip_brings_the_environment_of_its_backend() -> None:
    environment = compose("serve", ["chip=kunlun"]).config.backend.environment
    assert environment["XMLIR_FORCE_USE_XPU_GRAPH"] == "1"
    assert compose("serve", ["chip=kunlun", "backend=sim"]).config.backend.environment == {}
    other = ["chip=kunlun", "backend.environment.XPU_USE_DEFAULT_CTX=0"]
    assert compose("serve", other).config.backend.environment == environment | {"XPU_USE_DEFAULT_CTX": "0"}


@pytest.mark.slow
def test_the_environment_is_set_before_torch_is_imported() -> None:
    code = """
import builtins, os, sys
imported = builtins.__import__
def noting(name, *rest, **more):
    if name.partition(".")[0] == "torch" and "torch" not in sys.modules:
        print("first import of torch sees", os.environ.get("XMLIR_CUDNN_ENABLED"))
    return imported(name, *rest, **more)
builtins.__import__ = noting
from sglk.cli import main
main(["serve", "chip=kunlun", "model=qwen32b", "server.port=0"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0] == "first import of torch sees 1"
    assert "kunlun: not available" in done.stderr
