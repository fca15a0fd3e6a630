"""Kernels of other processors, and stand-ins for the libraries of a vendor."""

import ctypes
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglk.backends.cpu_kernels import library
from sglk.backends.cpu_kernels.compiler import find_compiler
from sglk.backends.kunlun import KunlunBackend
from tests.backends.kunlun_on_cpu import Change

SDK = Path(__file__).parent / "kunlun_sdk"
MODULES = ("kunlun_ops", "torch_xmlir", "xspeedgate_ops")


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library for processors with AVX2 and nothing wider."""
    flags = library.processor_instructions().split()
    if "avx2" not in flags or "fma" not in flags:
        pytest.skip("this processor has no AVX2")
    path = tmp_path_factory.mktemp("narrow") / "kernels.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "NATIVE", ("-march=haswell",))
        library.build(find_compiler(), path)
    return ctypes.CDLL(str(path))


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the stand-ins in a folder, with a device node beside it."""
    folder = tmp_path / "sdk"
    shutil.copytree(SDK, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/xpu0").touch()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(KunlunBackend, "root", tmp_path)
    yield folder
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.fixture
def change(sdk: Path) -> Change:
    """Return what replaces text in a stand-in before it is imported."""

    def replace(old: str, new: str) -> None:
        file = sdk / "kunlun_ops.py"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return replace
