"""Native libraries that do not fit this system: real ones, damaged, so that the loader's own words are read."""

import shutil
import sysconfig
from pathlib import Path

import pytest

from sglk import plugins
from sglk.errors import BackendError
from tests.plugins.distributions import install_backend


def extension_with(needed: bytes) -> Path:
    """Return an installed extension module whose file has `needed` among its names."""
    folders = [Path(sysconfig.get_path("platstdlib")) / "lib-dynload", Path(sysconfig.get_path("purelib"))]
    found = (file for folder in folders for file in sorted(folder.rglob("*.so")) if file.stat().st_size < 2**20)
    return next(file for file in found if b"\0" + needed + b"\0" in file.read_bytes())


def damaged(folder: Path, replaced: bytes, by: bytes) -> Path:
    assert len(by) == len(replaced)
    original = extension_with(replaced)
    copy = folder / original.name
    shutil.copy(original, copy)
    copy.write_bytes(original.read_bytes().replace(b"\0" + replaced + b"\0", b"\0" + by + b"\0"))
    return copy


def refusal(name: str) -> str:
    with pytest.raises(BackendError) as caught:
        plugins.load_backend(name)
    return str(caught.value)


def test_a_symbol_that_no_library_has_is_named_with_its_file(site: Path, tmp_path: Path) -> None:
    library = damaged(tmp_path, b"PyModuleDef_Init", b"PyModuleDef_Gone")
    install_backend(site, "native", f"import ctypes\nctypes.CDLL({str(library)!r}, mode=2)")
    message = refusal("native")
    assert f"OSError: {library}: undefined symbol: PyModuleDef_Gone; the library that should have" in message
    assert "this Python has torch 2." in message


def test_a_c_library_that_is_too_old_is_named_with_what_is_needed(site: Path, tmp_path: Path) -> None:
    library = damaged(tmp_path, b"GLIBC_2.2.5", b"GLIBC_9.2.5")
    install_backend(site, "native", f"import ctypes\nctypes.CDLL({str(library)!r})")
    message = refusal("native")
    assert "version `GLIBC_9.2.5' not found" in message
    assert str(library) in message
    assert "it needs glibc 9.2.5 and this system has 2." in message


def test_a_library_that_is_not_there_is_named(site: Path) -> None:
    install_backend(site, "native", "import ctypes\nctypes.CDLL('libsglk_no_such.so.7')")
    message = refusal("native")
    assert "install the driver or SDK that brings libsglk_no_such.so.7, or add its folder to LD_LIBRARY" in message


def test_a_file_that_is_no_library_is_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "libtext.so").write_text("an answer of a proxy, saved under the library's name")
    install_backend(site, "native", f"import ctypes\nctypes.CDLL({str(tmp_path / 'libtext.so')!r})")
    assert f"OSError: {tmp_path}/libtext.so: " in refusal("native")
